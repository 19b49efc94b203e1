"""Where the device windows of steps begin amid queued work, and lengths of steps that the host paces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from frames import derive, table
from hypothesis import given
from hypothesis import strategies as st

MS = 1_000_000


def step(number: int, start: int, end: int) -> dict[str, Any]:
    row = {"name": f"ProfilerStep#{number}", "start_ns": start, "end_ns": end}
    return row | {"on_device": False, "process": 1, "thread": 1}


def launch(start: int, number: int) -> dict[str, Any]:
    """Return a call that returns 10 ns after its start."""
    return {"name": "cudaLaunchKernel", "start_ns": start, "end_ns": start + 10, "correlation": number}


def work(start: int, end: int, number: int, stream: int = 7) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "correlation": number, "stream": stream}


def kernel(start: int, end: int, number: int) -> dict[str, Any]:
    return work(start, end, number) | {"name": "gemm", "device": 0}


def copy(start: int, end: int, number: int) -> dict[str, Any]:
    return work(start, end, number, 9) | {"kind": "HtoD"}


def windows(**raw: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return start and end on the device, and until when other work ran, of each step."""
    found = derive("steps", **{name: table(name, rows) for name, rows in raw.items()})
    return found.select("device_start_ns", "device_end_ns", "queued_until_ns").rows()


ONE = [step(1, 0, 100)]
AT = 10 + MS + 1
"""When work starts 1 ms and 1 ns after a launch at 0 has returned."""


def test_a_first_kernel_more_than_1_ms_after_its_launch_waited_for_unrecorded_work() -> None:
    launches = [launch(0, 5)]
    assert windows(annotations=ONE, launches=launches, kernels=[kernel(AT, 2 * MS, 5)]) == [(AT, 2 * MS, AT)]
    soon = [kernel(AT - 1, 2 * MS, 5)]
    assert windows(annotations=ONE, launches=launches, kernels=soon) == [(0, 2 * MS, None)]


def test_a_first_kernel_without_length_waited_too() -> None:
    found = windows(annotations=ONE, launches=[launch(0, 5)], kernels=[kernel(AT, AT, 5)])
    assert found == [(AT, AT, AT)]


@pytest.mark.parametrize(("ends", "queued"), [(AT - 1 - MS, AT), (AT - MS, None), (AT, None), (AT + 5, AT)])
def test_work_that_ended_before_the_first_kernel_explains_its_wait(ends: int, queued: int | None) -> None:
    """Up to 1 ms after it; a copy that runs on beside the kernel did not delay it."""
    raw = {"launches": [launch(0, 5), launch(20, 6)], "memcpy": [copy(5, ends, 6)]}
    (found,) = windows(annotations=ONE, kernels=[kernel(AT, 2 * MS, 5)], **raw)
    assert found == (queued or 0, 2 * MS, queued)


def test_the_step_that_launched_the_first_kernel_is_the_one_that_waited() -> None:
    """Step 2 launches at 120 ns what starts 3 ms later."""
    steps = [step(1, 0, 100), step(2, 100, 200), step(3, 200, 300)]
    kernels = [kernel(3 * MS, 4 * MS, 5), kernel(4 * MS, 5 * MS, 6)]
    found = windows(annotations=steps, launches=[launch(120, 5), launch(220, 6)], kernels=kernels)
    assert found == [(0, 100, None), (3 * MS, 4 * MS, 3 * MS), (4 * MS, 5 * MS, None)]


def test_a_launch_that_is_missing_shows_no_wait() -> None:
    """The kernel's number is above that of the first call, so it was launched in the recording."""
    found = windows(
        annotations=ONE, launches=[launch(0, 5)], kernels=[kernel(50, 60, 9), kernel(AT, AT + 5, 5)]
    )
    assert found == [(0, AT + 5, None)]


def test_a_whole_trace_begins_with_a_first_kernel_that_waited() -> None:
    assert windows(launches=[launch(0, 5)], kernels=[kernel(AT, 2 * MS, 5)]) == [(AT, 2 * MS, AT)]
    assert windows(launches=[launch(0, 5)], kernels=[kernel(AT - 1, 2 * MS, 5)]) == [(0, 2 * MS, None)]


def test_a_whole_trace_begins_with_a_first_kernel_that_was_launched_before_it() -> None:
    """The host's first event is at 0; the first kernel, launched earlier, starts 8 ms later."""
    launches = [launch(0, 5)]

    def found(start: int) -> list[tuple[Any, ...]]:
        return windows(launches=launches, kernels=[kernel(start, 10 * MS, 2), kernel(10 * MS, 12 * MS, 5)])

    assert found(8 * MS) == [(8 * MS, 12 * MS, 8 * MS)]
    assert found(MS + 1) == [(MS + 1, 12 * MS, MS + 1)]
    assert found(MS) == [(0, 12 * MS, None)]


def test_a_marked_step_begins_after_what_was_launched_before_the_recording() -> None:
    """However late that started: until 10 ms no step's work ran."""
    kernels = [kernel(8 * MS, 10 * MS, 2), kernel(10 * MS, 12 * MS, 5)]
    found = windows(annotations=ONE, launches=[launch(0, 5)], kernels=kernels)
    assert found == [(10 * MS, 12 * MS, 10 * MS)]


@st.composite
def recordings(draw: st.DrawFn) -> dict[str, list[dict[str, Any]]]:
    """Return steps, gaps between them included, with work of each and of none that may run far behind."""
    steps, launches, kernels, at, free = [], [], [], 0, draw(st.integers(0, 30))
    number = 10
    for place in range(draw(st.integers(0, 2))):
        kernels.append(kernel(free, free + 8, 1 + place))
        free += 8 + draw(st.integers(0, 4))
    for place in range(draw(st.integers(1, 5))):
        at += draw(st.integers(0, 6))
        length = draw(st.integers(1, 40))
        moments = draw(st.lists(st.integers(-3, length - 1), max_size=4).map(sorted))
        for moment in moments:
            start = max(free, at + moment + draw(st.integers(0, 9)))
            took = draw(st.integers(0, 25))
            launches.append({"name": "cudaLaunchKernel", "start_ns": at + moment, "end_ns": at + moment + 1})
            launches[-1]["correlation"] = number
            kernels.append(kernel(start, start + took, number))
            free, number = start + took, number + 1
        steps.append(step(place, at, at + length))
        at += length
    return {"annotations": steps, "launches": launches, "kernels": kernels}


@given(raw=recordings())
def test_steps_are_together_as_long_as_their_windows_or_the_host_s_ranges(
    raw: dict[str, list[dict[str, Any]]],
) -> None:
    found = derive("steps", **{name: table(name, rows) for name, rows in raw.items()})
    rows = found.select("start_ns", "end_ns", "device_start_ns", "device_end_ns", "length_ns").rows()
    host_ns = sum(end - start for start, end, *_ in rows)
    window_ns = sum(end - start for _, _, start, end, _ in rows)
    assert sum(row[4] for row in rows) == max(host_ns, window_ns)
    for start, end, device_start, device_end, length in rows:
        assert start <= device_start <= device_end
        assert end <= device_end
        lacking = max(host_ns - window_ns, 0) / len(rows)
        assert 0 <= length - (device_end - device_start) - lacking // 1 <= 1


@given(raw=recordings())
def test_windows_hold_the_work_of_their_step_and_follow_each_other(
    raw: dict[str, list[dict[str, Any]]],
) -> None:
    """The first work of a step may begin before its window only while that of the step before runs."""
    found = derive("steps", **{name: table(name, rows) for name, rows in raw.items()})
    windows = found.select("start_ns", "end_ns", "device_start_ns", "device_end_ns").rows()
    assert all(one[3] <= other[2] for one, other in pairwise(windows))
    launched = {row["correlation"]: row["start_ns"] for row in raw["launches"]}
    for start, end, device_start, device_end in windows:
        of_step = [
            row for row in raw["kernels"] if start <= launched.get(row["correlation"], start - 1) < end
        ]
        assert all(device_start <= row["start_ns"] and row["end_ns"] <= device_end for row in of_step)


def test_a_device_that_begins_late_and_runs_dry_lacks_what_its_host_takes() -> None:
    """Host ranges of 100 and 100 ns; the device works from 60 to 90 and from 150 to 200.

    Work from before the recording ends at 50, so the windows are 50 to 100 and 100 to 200: 50 ns lack.
    """
    raw = {
        "annotations": [step(1, 0, 100), step(2, 100, 200)],
        "launches": [launch(20, 5), launch(120, 6)],
        "kernels": [kernel(0, 50, 2), kernel(60, 90, 5), kernel(150, 200, 6)],
    }
    found = derive("steps", **{name: table(name, rows) for name, rows in raw.items()})
    columns = ("device_start_ns", "device_end_ns", "length_ns")
    assert found.select(columns).rows() == [(50, 100, 75), (100, 200, 125)]
