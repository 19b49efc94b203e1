"""Copies: how much, how long, how fast."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from local_plain import interval, trace_of, union_length
from local_traces import copy, kernel, launch, op, result, results, step, table, value, write
from recorded_runs import tables_of

ON_DEVICE = ["nccl-args", "deepseek-dualpipe", "dlrm-8rank", "megatron-tp8"]


def copying() -> list[dict]:
    return [
        step(1, 0, 100),
        launch(1, 1, 2), kernel("a", 1, 10, 30),
        copy("HtoD", 6_000, 2, 20, 40, stream=8),   # 10 of 20 us under the kernel
        copy("HtoD", 2_000, 3, 35, 55, stream=9),   # 5 us beside the other copy
        copy("DtoD", 1_000_000, 4, 60, 62),
        copy("DtoH", 0, 5, 62, 64) | {"args": {"correlation": 5, "stream": 7}},
        {**copy("", 4_000, 6, 70, 90), "cat": "gpu_memset", "name": "Memset (Device)"},
    ]  # fmt: skip


def test_copies_are_counted_by_kind(tmp_path: Path) -> None:
    rows = table(write(tmp_path, copying()), "copies")
    assert rows.select("kind", "count", "bytes", "sized", "duration_ns", "time_ns", "union_ns").rows() == [
        ("DtoD", 1, 1_000_000, 1, 2_000, 2_000, 2_000),
        ("DtoH", 1, 0, 0, 0, 2_000, 2_000),
        ("HtoD", 2, 8_000, 2, 40_000, 40_000, 35_000),
        ("memset", 1, 4_000, 1, 20_000, 20_000, 20_000),
    ]


def test_transfer_overhead_is_the_time_with_a_copy_and_no_kernel(tmp_path: Path) -> None:
    run = write(tmp_path, copying())
    assert value(run, "memory_transfer_overhead") == pytest.approx(25 + 2 + 2)
    assert result(run, "memory_transfer_overhead").details["copy_pct_of_step"] == pytest.approx(35 + 2 + 2)


def test_average_bandwidth_is_bytes_over_time_without_sets_and_unknown_sizes(tmp_path: Path) -> None:
    run = write(tmp_path, copying())
    assert value(run, "average_memory_bandwidth") == pytest.approx(1_008_000 / 42e-6 / 1e9)
    details = result(run, "average_memory_bandwidth").details
    assert details["per_kind_gb_per_s"] == pytest.approx({"DtoD": 500.0, "HtoD": 0.2})
    assert details["copies_of_unknown_size"] == 1


def test_copies_within_the_device_read_and_write(tmp_path: Path) -> None:
    run = write(tmp_path, copying(), device="NVIDIA A100-SXM4-80GB")
    assert value(run, "memory_bandwidth_utilization") == pytest.approx(100 * 2 * 500 / 2039)


def test_an_unknown_device_has_no_bandwidth_to_reach(tmp_path: Path) -> None:
    assert result(write(tmp_path, copying()), "memory_bandwidth_utilization").status == "not_applicable"
    run = write(tmp_path / "odd", copying(), device="Contraption 9000")
    assert result(run, "memory_bandwidth_utilization").status == "not_measurable"


def test_no_bytes_stand_in_for_memory_traffic_of_kernels(tmp_path: Path) -> None:
    run = write(tmp_path, copying(), model_flops_per_token=1e9)
    assert result(run, "compute_intensity").status == "not_measurable"


def test_cpus_copy_nothing(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 20)])
    found = results(
        run, "memory_transfer_overhead", "average_memory_bandwidth", "memory_bandwidth_utilization"
    )
    assert {one.status for one in found.values()} == {"not_measurable"}


def test_a_device_that_copies_nothing_has_no_overhead(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), launch(1, 1, 2), kernel("a", 1, 10, 30)])
    assert value(run, "memory_transfer_overhead") == 0
    assert result(run, "average_memory_bandwidth").status == "not_measurable"


@pytest.mark.parametrize("run", ON_DEVICE)
def test_copies_of_recorded_runs_equal_a_plain_count(corpus: Path, run: str) -> None:
    found = tables_of(corpus / "kineto" / run)
    rows, times = found["copies"], found["copy_time"]
    for rank, path in enumerate(sorted((corpus / "kineto" / run).glob("*.gz"))):
        trace = trace_of(path)
        kernels = [interval(e) for e in trace.of("kernel")]
        counts: Counter[tuple[int, str]] = Counter()
        sizes: Counter[tuple[int, str]] = Counter()
        exposed = []
        for number, (start, end), window in trace.steps:
            for event in trace.of("gpu_memcpy", "gpu_memset"):
                call = trace.launches.get(event["args"]["correlation"])
                if call and start <= interval(call)[0] < end:
                    kind = "memset" if event["cat"] == "gpu_memset" else event["name"].split()[1]
                    counts[number, kind] += 1
                    sizes[number, kind] += event["args"]["bytes"]
            moved = [interval(e) for e in trace.of("gpu_memcpy")]
            exposed.append(union_length(moved + kernels, window) - union_length(kernels, window))
        own = rows.filter(pl.col("rank") == rank)
        assert {r[:2]: r[2] for r in own.select("step", "kind", "count").iter_rows()} == counts
        assert {r[:2]: r[2] for r in own.select("step", "kind", "bytes").iter_rows()} == sizes
        assert times.filter(pl.col("rank") == rank)["exposed_ns"].to_list() == exposed
