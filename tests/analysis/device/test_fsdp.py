"""What fully sharded data parallelism costs."""

from pathlib import Path

import polars as pl
import pytest
from local_plain import Event, Interval, Trace, clip, interval, length, trace_of, union
from local_traces import copy, kernel, launch, note, op, result, results, step, table, value, write
from recorded_runs import tables_of

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)"


def sharded_step() -> list[Event]:
    return [
        step(1, 0, 1000),
        note("FSDP::pre_forward (blocks.0)", 0, 60),
        note("FSDP::all_gather (blocks.0)", 10, 30),
        launch(1, 12, 13), kernel("copy_in", 1, 20, 30, stream=8),
        launch(2, 15, 16), kernel(GATHER, 2, 30, 130, stream=9),
        note("FSDP::all_gather_copy_out (blocks.0)", 35, 50),
        launch(3, 40, 41), kernel("split_with_sizes_copy_out", 3, 130, 145),
        launch(4, 70, 71), kernel("gemm", 4, 145, 300),                       # the model's own
        note("FSDP::all_gather (blocks.1)", 80, 100),
        launch(5, 85, 86), kernel(GATHER, 5, 250, 350, stream=9),             # 50 of 100 hidden
        note("FSDP::post_backward_reduce (blocks.1)", 400, 450),
        launch(6, 405, 406), kernel("chunk_cat", 6, 500, 510),
        launch(7, 410, 411), kernel(SCATTER, 7, 510, 600, stream=10),
        launch(8, 470, 471), kernel("gemm", 8, 510, 540),                     # hides 30
        note("FSDP::post_backward_reshard (blocks.1)", 460, 465),
        launch(9, 700, 701), kernel(GATHER, 9, 800, 900, stream=11),          # tensor parallelism
    ]  # fmt: skip


def test_work_is_fsdps_own_where_its_ranges_launched_it(tmp_path: Path) -> None:
    run = write(tmp_path, sharded_step(), sharded_step())
    row = table(run, "fsdp").row(0, named=True)
    assert (row["all_gathers"], row["reduce_scatters"]) == (2, 1)
    assert row["all_gather_ns"] == 200_000
    assert row["all_gather_hidden_ns"] == 50_000
    assert row["reduce_scatter_ns"] == 90_000
    assert row["reduce_scatter_hidden_ns"] == 30_000
    assert row["copy_in_ns"] == 20_000
    assert row["copy_out_ns"] == 15_000
    assert row["work_ns"] == 200_000 + 90_000 + 20_000 + 15_000
    assert row["exposed_ns"] == row["work_ns"] - 80_000
    assert row["host_ns"] == (60 + 20 + 50 + 5) * 1000
    # The gather and the reduction of this step run one after the other.
    assert row["communication_ns"] == row["all_gather_ns"] + row["reduce_scatter_ns"]


def test_copies_that_pre_forward_launches_are_sharding_too(tmp_path: Path) -> None:
    """An offloaded run: 530 of 1000 us move weights to the device in a range without a name of its own."""
    events = [
        step(1, 0, 1000),
        note("FSDP::pre_forward (blocks.0)", 0, 60),
        launch(1, 12, 13), copy("HtoD", 1 << 20, 1, 20, 320),
        note("FSDP::root_pre_forward", 70, 80),
        launch(2, 75, 76), copy("HtoD", 1 << 20, 2, 320, 550),
        launch(3, 100, 101), kernel("gemm", 3, 540, 700),        # hides 10 of them
        launch(4, 102, 103), copy("HtoD", 1 << 20, 4, 700, 800),  # the program's own
    ]  # fmt: skip
    run = write(tmp_path, events, events)
    assert value(run, "fsdp_overhead") == pytest.approx(52.0)
    assert result(run, "fsdp_overhead").details["other_s"] == pytest.approx(530e-6)


def test_the_forward_of_the_older_kind_holds_the_model_and_hides_nothing(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        note("FullyShardedDataParallel.forward", 0, 900),
        note("FullyShardedDataParallel._pre_forward", 10, 50),
        launch(1, 12, 13), kernel(GATHER, 1, 20, 120, stream=9),
        launch(2, 60, 61), kernel("gemm", 2, 120, 320),
        note("FullyShardedDataParallel._to_kwargs", 400, 420),
        launch(3, 405, 406), copy("HtoD", 64, 3, 500, 550),
    ]  # fmt: skip
    run = write(tmp_path, events, events)
    assert value(run, "fsdp_overhead") == pytest.approx(15.0)
    assert result(run, "fsdp_overhead").details["host_s"] == pytest.approx(60e-6)


def test_ranges_of_zero_shard_as_well(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        note("DeepSpeedEngine.forward", 0, 900),
        note("PartitionedParameterCoordinator.fetch_sub_module", 10, 50),
        launch(1, 12, 13), kernel(GATHER, 1, 20, 120, stream=9),
        launch(2, 60, 61), kernel("gemm", 2, 120, 320),
        note("DeepSpeedZeroOptimizer_Stage3.__reduce_and_partition_ipg_grads", 400, 420),
        launch(3, 405, 406), kernel(SCATTER, 3, 500, 550),
        note("DeepSpeedZeroOptimizer_Stage3.step", 500, 620),
        launch(4, 505, 506), kernel("multi_tensor_apply_kernel", 4, 600, 700),
    ]  # fmt: skip
    details = result(write(tmp_path, events, events), "fsdp_overhead").details
    assert details["all_gather_s"] == pytest.approx(100e-6)
    assert details["reduce_scatter_s"] == pytest.approx(50e-6)
    assert details["exposed_s"] == pytest.approx(150e-6)


def test_ranges_to_which_no_work_can_be_traced_are_no_zero(tmp_path: Path) -> None:
    silent = [event for event in sharded_step() if event["cat"] != "cuda_runtime"]
    found = result(write(tmp_path / "all", silent, silent), "fsdp_overhead")
    assert (found.status, found.value) == ("not_measurable", None)
    found = result(write(tmp_path / "one", sharded_step(), silent), "fsdp_overhead")
    assert found.status == "not_measurable"
    assert "rank 1" in (found.reason or "")


def test_overhead_and_prefetch_efficiency_follow(tmp_path: Path) -> None:
    run = write(tmp_path, sharded_step(), sharded_step())
    overhead, efficiency = results(run, "fsdp_overhead", "fsdp_prefetch_efficiency").values()
    assert overhead.value == pytest.approx(24.5)
    assert efficiency.value == pytest.approx(25)
    details = overhead.details
    assert details["all_gather_s"] == pytest.approx(200e-6)
    assert (details["all_gathers_per_step"], details["reductions_per_step"]) == (2, 1)
    assert efficiency.details["reduction_hidden_pct"] == pytest.approx(100 / 3)


def test_a_run_without_sharding_has_no_sharding_to_pay_for(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), launch(1, 1, 2), kernel("gemm", 1, 10, 20)])
    assert result(run, "fsdp_overhead").status == "not_applicable"
    assert result(run, "fsdp_prefetch_efficiency").status == "not_applicable"


def test_gathers_that_cannot_be_traced_back_are_no_zero(tmp_path: Path) -> None:
    events = [event for event in sharded_step() if event["cat"] != "cuda_runtime"]
    assert result(write(tmp_path, events), "fsdp_prefetch_efficiency").status == "not_measurable"


def test_hidden_time_on_cpus_comes_from_operators_of_other_threads(tmp_path: Path) -> None:
    events = [
        step(1, 0, 200),
        note("FSDP::all_gather (a)", 10, 30), op("c10d::_allgather_base_", 15, 20),
        note("gloo:all_gather", 25, 125, tid=9),
        op("aten::mm", 50, 75),
    ]  # fmt: skip
    assert value(write(tmp_path, events, backend="gloo"), "fsdp_prefetch_efficiency") == pytest.approx(25)


def _inside(trace: Trace, prefix: str) -> list[Interval]:
    return [interval(e) for e in trace.of("user_annotation") if e["name"].startswith(prefix)]


def test_fsdp_on_gloo_equals_a_plain_count(corpus: Path) -> None:
    run = corpus / "kineto" / "gloo-fsdp2-tp2-args"
    rows = tables_of(run)["fsdp"]
    for rank, path in enumerate(sorted(run.glob("*.gz"))):
        trace = trace_of(path)
        ranges = sorted(interval(e) for e in trace.of("user_annotation") if e["name"].startswith("gloo:"))
        calls = sorted(interval(e) for e in trace.of("cpu_op") if e["name"] == "record_param_comms")
        assert len(ranges) == len(calls)
        gathering = [
            s
            for s in _inside(trace, "FSDP::all_gather")
            if s not in _inside(trace, "FSDP::all_gather_copy_out")
        ]
        reducing = _inside(trace, "FSDP::post_backward_reduce")
        own = rows.filter(pl.col("rank") == rank).iter_rows(named=True)
        for (_, cpu, _), row in zip(trace.steps, own, strict=True):
            for column, places in (
                ("all_gather_ns", gathering),
                ("reduce_scatter_ns", reducing),
                ("communication_ns", gathering + reducing),
            ):
                mine = [
                    span
                    for span, call in zip(ranges, calls, strict=True)
                    if any(start <= call[0] < end for start, end in places)
                ]
                assert row[column] == length(union(clip(mine, cpu)))
            hosts = [interval(e) for e in trace.of("user_annotation") if e["name"].startswith("FSDP::")]
            assert row["host_ns"] == length(union(clip(hosts, cpu)))


def test_the_bundled_run_gathers_every_block_and_reduces_each_once() -> None:
    run = Path(__file__).parents[3] / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"
    rows = tables_of(run)["fsdp"]
    # two blocks and the root gather once forward, the blocks again backward; all three reduce
    assert rows["all_gathers"].to_list() == [5] * rows.height
    assert rows["reduce_scatters"].to_list() == [3] * rows.height
    assert rows.filter(pl.col("exposed_ns") > pl.col("work_ns")).is_empty()
