"""Work that the device still had to do when the recording began: no step of the recording launched it."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from local_traces import copy, kernel, launch, result, step, table, value, write
from plain_json import document

from ccl_bench.analysis.device.breakdown import breakdown
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Callable
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


def beside_the_backlog() -> tuple[list[Event], list[Event]]:
    """Return the events of two steps, and the work before them that the device still has to do.

    Each step begins at once on another stream, with a kernel of 2 us and a copy, while the device works off
    the backlog of both kinds until 80 us; then come two GEMMs of 20 us.
    """
    events = [step(number, LENGTH * number, LENGTH * (number + 1)) for number in range(2)]
    correlation, at = 100, 80.0
    for number in range(2):
        asked = LENGTH * number + 1
        work = [
            kernel("early", 0, asked + 2, asked + 4, 40),
            copy("DtoD", 1_000, 0, asked + 4, asked + 5, 30),
            *(kernel(GEMM, 0, at + 20 * call, at + 20 * call + 20) for call in range(2)),
        ]
        at += 50
        for place, each in enumerate(work):
            each["args"]["correlation"] = correlation
            events += [each, launch(correlation, asked + place / 5, asked + place / 5 + 0.1)]
            correlation += 1
    backlog = [kernel(GEMM, 10 + place, 20 * place, 20 * place + 15) for place in range(4)]
    backlog += [copy("DtoD", 9_000, 20 + place, 20 * place, 20 * place + 8, 31) for place in range(4)]
    return events, backlog


def unlaunched(backlog: list[Event]) -> list[Event]:
    return backlog


def without_number(backlog: list[Event]) -> list[Event]:
    """Return work that states no launch; the first launch that is recorded begins later, at 1 us."""
    for event in backlog:
        event["args"]["correlation"] = 0
        event["ts"] -= LENGTH
    return backlog


def launched_outside(backlog: list[Event]) -> list[Event]:
    return [*backlog, *(launch(each["args"]["correlation"], -10, -9) for each in backlog)]


@pytest.mark.parametrize(
    ("recorded", "has_steps"),
    [
        (unlaunched, True),
        (without_number, True),
        (launched_outside, True),
        (unlaunched, False),
        (without_number, False),
    ],
)
def test_work_that_no_step_launched_is_in_no_sum_of_kernels_or_copies(
    tmp_path: Path, recorded: Callable[[list[Event]], list[Event]], *, has_steps: bool
) -> None:
    events, backlog = beside_the_backlog()
    if not has_steps:
        events = [event for event in events if event["cat"] != "user_annotation"]
    healthy = write(tmp_path / "healthy", events)
    behind = write(tmp_path / "behind", events + recorded(backlog))
    count = 2 if has_steps else 1
    for run in (healthy, behind):
        assert value(run, "total_kernel_time") == pytest.approx(2 * (2 + 20 + 20) / count * 1e-6)
        assert value(run, "dominant_kernel_concentration") == pytest.approx(100 * 40 / 42)
        kernels = table(run, "kernel_time")
        assert kernels["count"].sum() == 6
        copies = table(run, "copies").select(pl.col("count", "bytes", "time_ns", "union_ns").sum())
        assert copies.rows() == [(2, 2_000, 2_000, 2_000)]


def test_work_without_a_number_after_the_first_launch_belongs_where_it_starts(tmp_path: Path) -> None:
    events, _ = beside_the_backlog()
    events.append(kernel("unnumbered", 0, 40, 47, 50))
    run = write(tmp_path / "run", events)
    assert value(run, "total_kernel_time") == pytest.approx((2 * (2 + 20 + 20) + 7) / 2 * 1e-6)


def test_the_device_is_busy_with_work_that_no_step_launched(tmp_path: Path) -> None:
    """The first window is 3 to 120 us: of it the backlog and the step leave 15-20, 35-40, ... 75-80 idle.

    The host takes 120 us for each of two steps, 3 us more than the windows together: each idles half of it.
    """
    events, backlog = beside_the_backlog()
    parts = breakdown(*(table(write(tmp_path / "run", events + backlog), name) for name in ("steps", "work")))
    assert parts["window_ns"][0] == 118_500
    assert parts["idle_ns"][0] == 4 * 5_000 + 1_500
    assert parts["compute_ns"][0] + parts["exposed_memory_ns"][0] + parts["idle_ns"][0] == 118_500


def test_recorded_steps_have_the_kernels_that_they_launched(corpus: Path) -> None:
    run = "resnet-backlog"
    per_rank = []
    for path in sorted((corpus / "conclusions" / run).iterdir()):
        events = [event for event in document(path)["traceEvents"] if event.get("ph") == "X"]
        by_category: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.get("cat", "")].append(event)
        marks = [e for e in by_category["user_annotation"] if e["name"].startswith("ProfilerStep")]
        calls = by_category["cuda_runtime"] + by_category["cuda_driver"]
        asked_at = {e["args"]["correlation"]: e["ts"] for e in calls if "correlation" in e["args"]}
        total = sum(
            e["dur"]
            for e in by_category["kernel"]
            for mark in marks
            if mark["ts"] <= asked_at.get(e["args"]["correlation"], -1) < mark["ts"] + mark["dur"]
        )
        per_rank.append(float(total) / len(marks))
    found = result(corpus / "conclusions" / run, "total_kernel_time")
    assert found.value == pytest.approx(fmean(per_rank) * 1e-6, rel=1e-6)


def test_kernels_queued_before_a_report_of_nsight_systems_do_not_count(corpus: Path) -> None:
    """Of 2,017 and 1,993 kernels 12 each were launched before the recording; nothing marks a step."""
    run = corpus / "nsys/two-gpu-sendrecv"
    database = sqlite3.connect(f"file:{next(run.glob('*.sqlite'))}?mode=ro", uri=True)
    summed = """
        SELECT SUM(end - start), COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel WHERE correlationId >= (
            SELECT MIN(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
            WHERE call.globalTid / 0x1000000 = kernel.globalPid / 0x1000000
        ) GROUP BY globalPid"""
    (one, of_one), (other, of_other) = database.execute(summed)
    assert {of_one, of_other} == {2_017 - 12, 1_993 - 12}
    found = result(run, "total_kernel_time")
    assert found.value == pytest.approx((one + other) / 2 * 1e-9)
    assert found.details["kernels_per_step"] == (of_one + of_other) / 2
