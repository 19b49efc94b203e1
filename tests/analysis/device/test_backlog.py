"""Work that the device still had to do when the recording began: no step of the recording launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from local_traces import copy, kernel, launch, result, step, table, write

from ccl_bench.analysis.device.breakdown import breakdown
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from pathlib import Path

    from local_traces import Event

GEMM, REDUCE = "gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
STEPS, CALLS, LENGTH = 3, 4, 100.0


def queued(backlog: int) -> list[Event]:
    """Return three steps that the CPU launches in 100 us each, for a device that is `backlog` steps behind.

    Each step is four times a GEMM of 20 us and, on another stream, an all-reduce of 10 us after it: 120 us.
    Of the steps before the recording only the work is in the trace, as Kineto writes it.
    """
    events: list[Event] = [step(number, LENGTH * number, LENGTH * (number + 1)) for number in range(STEPS)]
    at, correlation = 10.0, 1
    for number in range(-backlog, STEPS):
        for call in range(CALLS):
            asked = LENGTH * number + 20 * call + 1
            at = max(at, asked + 5)
            work = ((GEMM, at, at + 20, 7), (REDUCE, at + 20, at + 30, 20))
            for place, (name, start, end, stream) in enumerate(work):
                events.append(kernel(name, correlation, start, end, stream))
                if number >= 0:
                    events.append(launch(correlation, asked + 2 * place, asked + 2 * place + 1))
                correlation += 1
            at += 30
    return events


@pytest.mark.parametrize("backlog", [0, 1, 2])
def test_every_step_counts_the_calls_that_it_launched(tmp_path: Path, backlog: int) -> None:
    found = result(write(tmp_path / "run", queued(backlog), queued(backlog)), "coll_call_num")
    assert found.value == CALLS
    assert found.details["per_step"] == {"0": 4, "1": 4, "2": 4}
    assert [finding.code for finding in found.findings] == ["host-ahead"]  # by 20 of 120 us


@pytest.mark.parametrize("backlog", [0, 1, 2])
def test_every_step_has_the_time_of_its_own_work(tmp_path: Path, backlog: int) -> None:
    run = write(tmp_path / "run", queued(backlog))
    parts = breakdown(table(run, "steps"), table(run, "work"))
    assert parts["compute_ns"].to_list() == [80_000] * STEPS
    assert parts["exposed_communication_ns"].to_list() == [40_000] * STEPS
    whole = parts.select(
        pl.sum_horizontal("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    ).to_series()
    assert whole.to_list() == parts["window_ns"].to_list()


def test_kernels_and_copies_count_to_the_step_that_launched_them(tmp_path: Path) -> None:
    early = [copy("DtoD", 8, 900, 2, 4, stream=30), launch(900, 1, 2)]
    late = [copy("DtoD", 8, 901, 112, 114, stream=30), launch(901, 110, 111)]
    run = write(tmp_path / "run", queued(2) + early + late)
    kernels = table(run, "kernel_time").group_by("step", "name").agg(pl.col("count").sum())
    assert set(kernels.rows()) == {(n, name, CALLS) for n in range(STEPS) for name in (GEMM, REDUCE)}
    copies = table(run, "copies").filter(pl.col("count") > 0).select("step", "count", "bytes")
    assert copies.rows() == [(0, 1, 8), (1, 1, 8)]


def test_work_without_a_recorded_launch_inside_steps_is_said(tmp_path: Path) -> None:
    """The device works from 10 to 370 us: 3 pieces of the last step start before the CPU leaves it at 300."""
    lost = [event for event in queued(0) if event["cat"] != "cuda_runtime" or event["ts"] < LENGTH]
    found = result(write(tmp_path / "run", lost), "gpu_busy")
    missing = next(finding for finding in found.findings if finding.code == "launches-missing")
    assert missing.count == 2 * CALLS + 3
    assert missing.message.startswith("11 of 19 kernels, copies and sets in steps have no recorded launch")


def test_steps_with_different_numbers_of_calls_are_said(tmp_path: Path) -> None:
    more = [kernel(REDUCE, 990, 400, 410, 20), launch(990, 250, 251)]
    run = write(tmp_path / "run", queued(0) + more, queued(0))
    found = result(run, "iteration_wall_clock_time")
    assert [(f.code, f.message.split(":")[0]) for f in found.findings] == [
        (
            "steps-unequal",
            "steps of the trace of rank 0 have different numbers of communication calls, such as 4, 5",
        ),
        ("host-ahead", "the host runs ahead of the device"),
    ]
