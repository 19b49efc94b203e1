"""How long a step is: from completion to completion, or as long as the host where that is slower."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from frames import derive, table
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.steps.findings import step_findings
from ccl_bench.analysis.steps.steps import QUEUED_NS, host_range_ns, mean_step_ns, step_times
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

Interval = tuple[int, int]


def found(
    hosts: list[Interval],
    works: list[tuple[int | None, int, int]],
    copies: list[tuple[int, int, int]] | None = None,
) -> list[dict[str, Any]]:
    """Return the steps of a trace with marks `hosts` and kernels (launch, start, end), and like copies."""
    marks = [
        {"name": f"ProfilerStep#{n}", "start_ns": start, "end_ns": end, "on_device": False, "process": 1}
        for n, (start, end) in enumerate(hosts)
    ]
    device = {"device": 0, "stream": 7}
    kernels = [
        device | {"name": "gemm", "start_ns": start, "end_ns": end, "correlation": number}
        for number, (_, start, end) in enumerate(works, start=1)
    ]
    memcpy = [
        {"kind": "HtoD", "start_ns": start, "end_ns": end, "correlation": number, "stream": 20}
        for number, (_, start, end) in enumerate(copies or (), start=len(works) + 1)
    ]
    calls = [
        {"name": "cudaLaunchKernel", "start_ns": at, "end_ns": at + 1, "correlation": number}
        for number, (at, _, _) in enumerate([*works, *(copies or ())], start=1)
        if at is not None
    ]
    tables = {"annotations": marks, "kernels": kernels, "memcpy": memcpy, "launches": calls}
    return derive("steps", **{name: table(name, rows) for name, rows in tables.items()}).to_dicts()


def windows(steps: list[dict[str, Any]]) -> list[Interval]:
    return [(step["device_start_ns"], step["device_end_ns"]) for step in steps]


def lengths(steps: list[dict[str, Any]]) -> list[int]:
    return [step["length_ns"] for step in steps]


def test_a_step_lasts_from_one_completion_to_the_next_where_the_host_runs_ahead() -> None:
    steps = found([(0, 16), (16, 32), (32, 48)], [(1, 3, 27), (17, 27, 54), (33, 54, 81)])
    assert windows(steps) == [(0, 27), (27, 54), (54, 81)]
    assert lengths(steps) == [27, 27, 27]


def test_a_host_that_waits_for_the_device_has_ranges_as_long_as_the_steps() -> None:
    steps = found([(0, 27), (27, 54)], [(1, 3, 26), (28, 30, 53)])
    assert lengths(steps) == [27, 27]


def test_without_a_device_a_step_is_as_long_as_the_range_on_the_host() -> None:
    assert lengths(found([(0, 10), (10, 25), (40, 50)], [])) == [10, 15, 10]


def test_a_window_that_began_late_does_not_make_the_steps_of_a_slower_host_shorter() -> None:
    # what was launched before the recording runs until 30; both steps take the host 100
    queued = (None, 0, 30)
    steps = found([(0, 100), (100, 200)], [queued, (5, 30, 40), (105, 110, 190)])
    assert windows(steps) == [(30, 100), (100, 200)]
    assert lengths(steps) == [85, 115]
    # the device goes on 20 after the host: 10 are lacking
    steps = found([(0, 100), (100, 200)], [queued, (5, 30, 40), (105, 110, 220)])
    assert windows(steps) == [(30, 100), (100, 220)]
    assert lengths(steps) == [75, 125]
    # a device that is slower than the host lacks nothing
    steps = found([(0, 100), (100, 200)], [queued, (5, 30, 150), (105, 150, 290)])
    assert lengths(steps) == [120, 140]


@pytest.mark.parametrize(("end", "length"), [(1_000_020, 1_000_020), (1_000_021, 90)])
def test_work_that_goes_on_after_its_successor_began_does_not_lengthen_the_step(
    end: int, length: int
) -> None:
    """The kernels are on one stream; the first of them ends up to 1 ms after the second begins, or later."""
    steps = found([(0, 90)], [(1, 5, end), (10, 20, 60)])
    assert lengths(steps) == [length]


shapes = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(0, 80)), min_size=1, max_size=5
)


@given(shapes, st.integers(0, 60), st.integers(0, 9))
def test_steps_take_as_long_as_the_slower_of_host_and_device(
    shapes: list[tuple[int, int, int]], queued: int, first: int
) -> None:
    hosts, works, at, free = [], [(None, 0, queued)], 0, queued
    for pause, length, runs in shapes:
        at += pause
        hosts.append((at, at + length))
        free = max(free, at + first)
        works.append((at, free, free + runs))
        free += runs
        at += length
    steps = found(hosts, works)
    of_host = sum(end - start for start, end in hosts)
    of_device = sum(end - start for start, end in windows(steps))
    assert sum(lengths(steps)) == max(of_host, of_device)
    lacking = max(of_host - of_device, 0) / len(steps)
    for step, (start, end) in zip(steps, windows(steps), strict=True):
        assert 0 <= step["length_ns"] - (end - start) - lacking // 1 <= 1


@pytest.mark.parametrize(("delay", "begins"), [(QUEUED_NS, 0), (QUEUED_NS + 1, QUEUED_NS + 12)])
def test_a_first_kernel_more_than_a_millisecond_late_was_behind_unrecorded_work(
    delay: int, begins: int
) -> None:
    start = 11 + delay  # its launch returns at 11
    works = [(10, start, start + 5_000_000), (6_000_000, start + 5_000_000, start + 9_000_000)]
    steps = found([(0, 5_000_000), (5_000_000, 9_000_000)], works)
    assert windows(steps)[0] == (begins, start + 5_000_000)
    assert steps[0]["queued_until_ns"] == (begins or None)
    # the device ends behind the host by less than its first window began late
    assert sum(lengths(steps)) == max(9_000_000, start + 9_000_000 - begins)


@pytest.mark.parametrize(("copied", "begins"), [(500_000, 0), (400_000, 1_500_000)])
def test_a_first_kernel_soon_after_a_recorded_copy_waited_for_that(copied: int, begins: int) -> None:
    steps = found([(0, 5_000_000)], [(20, 1_500_000, 6_000_000)], copies=[(10, 30, copied)])
    assert windows(steps) == [(begins, 6_000_000)]


def test_a_whole_trace_begins_behind_unrecorded_work_too() -> None:
    (step,) = found([], [(10, 3_000_000, 6_000_000)])
    assert (step["source"], step["start_ns"], step["length_ns"]) == ("whole trace", 10, 3_000_000)


def spans(*rows: tuple[int, int]) -> pl.DataFrame:
    """Return steps of one rank that take these times, on the host and in all."""
    records = [
        {"iteration": None, "trace": 0, "rank": 0, "step": number, "source": "ProfilerStep", "start_ns": 0}
        | {"end_ns": host, "length_ns": length, "calls": 1, "work": 1, "unlaunched": 0}
        | {"cuts_operator": False}
        for number, (host, length) in enumerate(rows)
    ]
    return pl.DataFrame(records, schema_overrides={"iteration": pl.Int64})


@pytest.mark.parametrize(
    ("rows", "is_said"),
    [([(95, 100)], False), ([(94, 100)], True), ([(100, 100), (90, 100)], False), ([(16, 27)] * 3, True)],
)
def test_a_host_that_is_more_than_a_twentieth_ahead_is_reported(
    rows: list[tuple[int, int]], is_said: bool
) -> None:
    assert [each.code for each in step_findings(spans(*rows))] == ["host-ahead"] * is_said


def test_the_step_of_a_run_is_the_mean_of_the_slowest_ranks() -> None:
    times = step_times(spans((10, 20), (30, 40)))
    other = times.with_columns(
        rank=pl.lit(1, pl.Int64), duration_ns=pl.Series([30, 10]), host_ns=pl.lit(5, pl.Int64)
    )
    both = pl.concat([times, other])
    assert (mean_step_ns(both), host_range_ns(both)) == (35.0, 20.0)
    assert host_range_ns(both.with_columns(host_ns=pl.lit(None, pl.Int64))) is None


def completions(path: Path) -> list[float]:
    """Return when the last work ended that each `ProfilerStep` of a file launched, in ms."""
    events = [
        each
        for each in msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
        if "dur" in each
    ]
    marks = sorted(
        (each["ts"], each["ts"] + each["dur"])
        for each in events
        if each["name"].startswith("ProfilerStep#") and each["cat"] == "user_annotation"
    )
    launched = {
        each["args"]["correlation"]: each["ts"]
        for each in events
        if each["cat"] in {"cuda_runtime", "cuda_driver"} and each["args"].get("correlation")
    }
    last: dict[int, float] = defaultdict(float)
    for each in events:
        if each["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"}:
            at = launched.get(each["args"].get("correlation"), -1.0)
            for number, (start, end) in enumerate(marks):
                if start <= at < end:
                    last[number] = max(last[number], each["ts"] + each["dur"])
    return [last[number] / 1e3 for number in range(len(marks))]


def test_a_recorded_run_whose_host_runs_ahead_has_the_steps_of_its_device(corpus: Path) -> None:
    """Its device is 30 ms behind when the recording begins."""
    folder = corpus / "conclusions" / "healthy_backlog"
    truth = json.loads((corpus / "conclusions" / "truth.json").read_text())["healthy_backlog"]
    (step,) = evaluate(open_run(folder), ["iteration_wall_clock_time"], jobs=1)
    ends = [completions(path) for path in sorted(folder.glob("*.gz"))]
    per_step = [*step.details["per_step_s"].values()]
    for number in range(1, len(per_step)):
        longest = max(rank[number] - rank[number - 1] for rank in ends)
        assert per_step[number] == pytest.approx(longest / 1e3, abs=1e-6)
    assert step.value == pytest.approx(fmean(per_step))
    steps_ms = truth["wall_per_step"] * len(per_step) - 30
    assert step.value == pytest.approx(steps_ms / len(per_step) / 1e3, rel=1e-3)
    assert step.details["host_range_s"] == pytest.approx(truth["step_ms"] / 1e3, rel=1e-3)
    assert "host-ahead" in {finding.code for finding in step.findings}


def test_a_recorded_run_whose_host_waits_has_the_steps_of_both(corpus: Path) -> None:
    folder = corpus / "conclusions" / "late_host"
    truth = json.loads((corpus / "conclusions" / "truth.json").read_text())["late_host"]
    (step,) = evaluate(open_run(folder), ["iteration_wall_clock_time"], jobs=1)
    assert step.value == pytest.approx(truth["step_ms"] / 1e3, rel=1e-3)
    assert step.details["host_range_s"] == pytest.approx(step.value, rel=1e-6)
    assert "host-ahead" not in {finding.code for finding in step.findings}
