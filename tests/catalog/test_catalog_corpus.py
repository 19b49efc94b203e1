"""The catalog against names recorded on real machines, found through CCL_BENCH_CORPUS."""

from __future__ import annotations

import collections
import functools
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from plain_json import document

from ccl_bench.catalog.collectives import canonical, is_bookkeeping, of_annotation, of_kernel
from ccl_bench.catalog.devices import device
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.catalog.kernel_types import kernel_type

CORPUS = Path(os.environ.get("CCL_BENCH_CORPUS", ""))

pytestmark = pytest.mark.skipif(
    "CCL_BENCH_CORPUS" not in os.environ,
    reason="CCL_BENCH_CORPUS is unset: no recorded traces to check against",
)


def kineto(run: str) -> list[dict[str, Any]]:
    return [document(path) for path in sorted((CORPUS / "kineto" / run).glob("*.gz"))]


@functools.cache
def kernel_time(run: str) -> collections.Counter[str]:
    total: collections.Counter[str] = collections.Counter()
    for trace in kineto(run):
        for event in trace["traceEvents"]:
            if str(event.get("cat", "")).lower() == "kernel":
                total[event["name"]] += event["dur"]
    return total


def nsys_kernel_time(export: str) -> collections.Counter[str]:
    query = (
        "select s.value, sum(k.end - k.start) from CUPTI_ACTIVITY_KIND_KERNEL k "
        "join StringIds s on s.id = k.demangledName group by 1"
    )
    with sqlite3.connect(f"file:{CORPUS / 'nsys' / export}?immutable=1", uri=True) as database:
        return collections.Counter(dict(database.execute(query)))


def share(times: collections.Counter[str], kind: str) -> float:
    return float(sum(t for name, t in times.items() if kernel_type(name) == kind) / sum(times.values()))


@pytest.mark.parametrize(
    ("run", "most_other"),
    # Megatron's two Triton kernels are called `triton_`, which tells nothing
    [("deepseek-dualpipe", 0.0), ("dlrm-8rank", 0.0), ("nccl-args", 0.0), ("megatron-tp8", 0.02)],
)
def test_hardly_any_time_of_a_recorded_run_is_of_unknown_type(run: str, most_other: float) -> None:
    assert share(kernel_time(run), "other") <= most_other


@pytest.mark.parametrize(
    "export",
    [
        "two-gpu-sendrecv/mfu_2gpu_before.sqlite",
        "nvtx-attention/result_2_7B_nvtx.sqlite",
        "tiny/rtx3080_tiny.sqlite",
    ],
)
def test_no_time_of_a_recorded_nsys_export_is_of_unknown_type(export: str) -> None:
    assert share(nsys_kernel_time(export), "other") == 0


@pytest.mark.parametrize(
    ("run", "marks"),
    [
        ("megatron-tp8", ("nccl",)),
        ("dlrm-8rank", ("nccl",)),
        ("nccl-args", ("nccl",)),
        ("deepseek-dualpipe", ("::internode::",)),
    ],
)
def test_communication_is_exactly_the_kernels_that_communicate(run: str, marks: tuple[str, ...]) -> None:
    names = set(kernel_time(run))
    stem_marked = {name for name in names if any(mark in name.partition("(")[0] for mark in marks)}
    assert {name for name in names if of_kernel(name)} == stem_marked


def test_half_of_the_dualpipe_chunk_is_all_to_all() -> None:
    times = kernel_time("deepseek-dualpipe")
    all_to_all = sum(time for name, time in times.items() if of_kernel(name) == "all_to_all")
    assert float(all_to_all / sum(times.values())) == pytest.approx(0.33, abs=0.005)


@pytest.mark.parametrize("run", ["nccl-args", "gloo-fsdp2-tp2-args"])
def test_every_recorded_collective_and_dtype_is_known(run: str) -> None:
    for trace in kineto(run):
        for event in trace["traceEvents"]:
            recorded = event.get("args", {}).get("Collective name")
            if recorded is not None:
                assert canonical(recorded) or is_bookkeeping(recorded)
                assert width_bytes(event["args"]["dtype"]) in (1, 4, 8)


@pytest.mark.parametrize("run", ["dlrm-8rank", "megatron-tp8", "nccl-args", "gloo-fsdp2-tp2-args"])
def test_every_recorded_library_range_is_known(run: str) -> None:
    silent = {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}
    for trace in kineto(run):
        ranges = {
            event["name"]
            for event in trace["traceEvents"]
            if event.get("name", "").startswith(("nccl:", "gloo:", "c10d::", "_c10d_functional::"))
        }
        assert {name for name in ranges if of_annotation(name) is None} <= silent


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("deepseek-dualpipe", "H800 SXM"),
        ("dlrm-8rank", "V100 SXM2 32GB"),
        ("megatron-tp8", "A100 SXM 80GB"),
        ("nccl-args", "A100 SXM 40GB"),
    ],
)
def test_the_recorded_device_is_found_and_its_units_agree(run: str, expected: str) -> None:
    for trace in kineto(run):
        for recorded in trace["deviceProperties"]:
            found = device(recorded["name"], memory_bytes=recorded["totalGlobalMem"])
            assert found.name == expected
            assert found.compute_units == recorded["numSms"]
            assert found.compute_capability == f"{recorded['computeMajor']}.{recorded['computeMinor']}"
