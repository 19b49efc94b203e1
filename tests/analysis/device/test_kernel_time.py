"""Kernel time by type and name, and what is made of it."""

from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
from local_plain import clip, interval, length, trace_of, union_length
from local_traces import kernel, launch, op, result, results, step, table, value, write
from recorded_runs import results_of, tables_of

from ccl_bench.catalog.collectives import of_kernel
from ccl_bench.catalog.kernel_types import kernel_type

ON_DEVICE = ["nccl-args", "deepseek-dualpipe", "dlrm-8rank", "megatron-tp8"]
GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def two_steps() -> list[dict]:
    return [
        step(1, 0, 100),
        step(2, 100, 200),
        launch(1, 10, 11), kernel(GEMM, 1, 20, 60),
        launch(2, 12, 13), kernel(ADD, 2, 50, 70, stream=8),
        launch(3, 110, 111), kernel(REDUCE, 3, 120, 180, stream=9),
        launch(4, 112, 113), kernel(GEMM, 4, 130, 140),
    ]  # fmt: skip


def test_concurrent_kernels_count_each_for_itself(tmp_path: Path) -> None:
    run = write(tmp_path, two_steps(), world_size=1)
    assert value(run, "total_kernel_time") == pytest.approx((40 + 20 + 60 + 10) / 2 * 1e-6)
    details = result(run, "total_kernel_time").details
    assert details["per_type_s"] == pytest.approx(
        {"communication": 30e-6, "gemm": 25e-6, "elementwise": 10e-6}
    )
    assert details["kernels_per_step"] == 2


def test_a_kernel_over_the_edge_of_steps_gives_each_its_part_and_starts_once(tmp_path: Path) -> None:
    events = [step(1, 0, 100), step(2, 100, 200), launch(1, 150, 151), kernel(GEMM, 2, 90, 130)]
    rows = table(write(tmp_path, events), "kernel_time").sort("step")
    assert rows.select("step", "count", "duration_ns").rows() == [(1, 1, 10_000), (2, 0, 30_000)]


def test_a_kernel_without_length_is_counted(tmp_path: Path) -> None:
    events = [step(1, 0, 100), launch(1, 10, 11), kernel(GEMM, 1, 20, 20)]
    rows = table(write(tmp_path, events), "kernel_time")
    assert rows.select("count", "duration_ns").rows() == [(1, 0)]
    assert result(tmp_path, "total_kernel_time").status == "not_measurable"


def test_the_dominant_kernel_is_the_name_with_most_time(tmp_path: Path) -> None:
    run = write(tmp_path, two_steps())
    assert value(run, "dominant_kernel_concentration") == pytest.approx(100 * 60 / 130)
    details = result(run, "dominant_kernel_concentration").details
    assert details["per_rank_name"] == {"0": REDUCE}
    assert details["compute_only_pct"] == pytest.approx(100 * 50 / 70)
    # 130 us of kernels in two steps, all of which are named.
    assert sum(each["pct"] for each in details["first"]) == pytest.approx(100)
    assert sum(each["s_per_step"] for each in details["first"]) == pytest.approx(130e-6 / 2)
    assert (details["first"][0]["name"], details["first"][0]["pct"]) == (
        REDUCE,
        pytest.approx(100 * 60 / 130),
    )


def test_recorded_metadata_makes_a_kernel_communication_under_any_name(tmp_path: Path) -> None:
    own = kernel("my_kernel", 1, 20, 60)
    own["args"]["Collective name"] = "allreduce"
    rows = table(write(tmp_path, [step(1, 0, 100), launch(1, 10, 11), own]), "kernel_time")
    assert rows.select("type", "collective").rows() == [("communication", "all_reduce")]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("moe_align_block_size_kernel", "routing_pct"),
        ("fused_moe_kernel", "grouped_matrix_products_pct"),
        ("void deep_gemm::m_grouped_gemm_fp8<1>(int)", "grouped_matrix_products_pct"),
        (
            "bmm_E2m1_E2m1E2m1_Fp32_t128x8x512u2_s5_swiGlu_dynBatch_sm100a",
            "grouped_matrix_products_pct",
        ),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", "dispatch_and_combine_pct"),
        ("void a2a_dispatch_send_kernel<true>(int)", "dispatch_and_combine_pct"),
        ("void deep_gemm::sm100_fp8_fp4_mega_moe_impl<8>(void*)", "fused_experts_pct"),
    ],
)
def test_kernels_that_serve_experts_are_recognised_by_name(tmp_path: Path, name: str, part: str) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 1, 2),
        kernel(name, 1, 10, 40),
        launch(2, 3, 4),
        kernel(GEMM, 2, 40, 50),
    ]
    details = result(write(tmp_path, events), "moe_fraction").details
    assert value(tmp_path, "moe_fraction") == pytest.approx(75)
    assert details[part] == pytest.approx(75)


def test_a_namespace_called_grouped_does_not_make_every_kernel_one_of_experts(tmp_path: Path) -> None:
    name = "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(int)"
    found = result(
        write(tmp_path, [step(1, 0, 100), launch(1, 1, 2), kernel(name, 1, 10, 40)]), "moe_fraction"
    )
    assert found.status == "not_applicable"


def test_a_run_on_cpus_has_no_kernel_time(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 20)])
    found = results(run, "total_kernel_time", "dominant_kernel_concentration", "moe_fraction")
    assert {one.status for one in found.values()} == {"not_measurable"}


@pytest.mark.parametrize("run", ON_DEVICE)
def test_kernel_time_of_recorded_runs_equals_a_plain_sum(corpus: Path, run: str) -> None:
    rows = tables_of(corpus / "kineto" / run)["kernel_time"]
    for rank, path in enumerate(sorted((corpus / "kineto" / run).glob("*.gz"))):
        trace = trace_of(path)
        counts: dict[tuple, int] = defaultdict(int)
        times: dict[tuple, int] = defaultdict(int)
        for number, _, window in trace.steps:
            for event in trace.of("kernel"):
                recorded = "Collective name" in event["args"] or of_kernel(event["name"])
                key = number, "communication" if recorded else kernel_type(event["name"]), event["name"]
                counts[key] += window[0] <= interval(event)[0] < window[1]
                times[key] += length(clip([interval(event)], window))
        own = rows.filter(pl.col("rank") == rank)
        found = {
            row[:3]: row[3:] for row in own.select("step", "type", "name", "count", "duration_ns").iter_rows()
        }
        assert found == {key: (counts[key], times[key]) for key in times if counts[key] or times[key]}


@pytest.mark.parametrize("run", ON_DEVICE)
def test_communication_of_recorded_runs_equals_a_plain_union(corpus: Path, run: str) -> None:
    totals, exposed, shares = [], [], []
    for path in sorted((corpus / "kineto" / run).glob("*.gz")):
        trace = trace_of(path)
        steps = trace.steps
        is_call = [bool("Collective name" in e["args"] or of_kernel(e["name"])) for e in trace.of("kernel")]
        kernels = [interval(event) for event in trace.of("kernel")]
        calls = [span for span, call in zip(kernels, is_call, strict=True) if call]
        compute = [span for span, call in zip(kernels, is_call, strict=True) if not call]
        total = sum(union_length(calls, window) for _, _, window in steps)
        both = sum(union_length(kernels, window) for _, _, window in steps)
        computing = sum(union_length(compute, window) for _, _, window in steps)
        totals.append(total / len(steps) / 1e9)
        exposed.append((both - computing) / len(steps) / 1e9)
        whole = sum(end - start for _, _, (start, end) in steps) + sum(trace.lacking)
        shares.append(100 * total / whole)
    found = results_of(corpus / "kineto" / run)
    assert found["total_communication_time"].value == pytest.approx(sum(totals) / len(totals))
    assert found["exposed_communication_time"].value == pytest.approx(sum(exposed) / len(exposed))
    assert found["communication_fraction"].value == pytest.approx(sum(shares) / len(shares))


def test_calls_at_the_same_time_count_once_in_all_and_each_in_their_sum(tmp_path: Path) -> None:
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"
    own = [
        step(1, 0, 100),
        launch(1, 1, 2),
        kernel(REDUCE, 1, 10, 50),
        launch(2, 3, 4),
        kernel(gather, 2, 30, 70, 9),
    ]
    run = write(tmp_path, own, own)
    assert value(run, "total_communication_time") == pytest.approx(60e-6)
    details = result(run, "total_communication_time").details
    assert details["summed_s"] == pytest.approx(80e-6)
    assert details["per_collective_s"] == pytest.approx({"all_gather": 40e-6, "all_reduce": 40e-6})


def test_several_ranks_without_communication_are_no_zero(tmp_path: Path) -> None:
    events = [step(1, 0, 100), launch(1, 10, 11), kernel(GEMM, 1, 20, 60)]
    run = write(tmp_path, events, events)
    found = results(run, "communication_fraction", "exposed_communication_time", "total_communication_time")
    assert {one.status for one in found.values()} == {"not_measurable"}


def test_load_imbalance_is_the_busiest_rank_over_the_mean(tmp_path: Path) -> None:
    def rank(until: float) -> list[dict]:
        return [step(1, 0, 100), launch(1, 10, 11), kernel(GEMM, 1, 20, until)]

    run = write(tmp_path, rank(40), rank(50), rank(50))
    found = result(run, "load_imbalance_ratio")
    assert found.value == pytest.approx(30 / ((20 + 30 + 30) / 3))
    assert found.details["busiest_rank"] in ("1", "2")


def test_one_rank_has_no_imbalance(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), launch(1, 10, 11), kernel(GEMM, 1, 20, 40)])
    assert result(run, "load_imbalance_ratio").status == "not_applicable"
