"""Recordings that begin amid queued work: lengths of steps, and what causes in the first one cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from local_traces import kernel, launch, note, step, write

from ccl_bench.diagnosis.diagnose import NOTHING, diagnose
from ccl_bench.diagnosis.gains import Gains
from ccl_bench.diagnosis.stalls import without_intervals
from ccl_bench.run import open_run
from ccl_bench.whatif import RunReplays, load_run_graph

if TYPE_CHECKING:
    from pathlib import Path

    from local_traces import Event

STEPS, KERNEL, BACKLOG, HOST = 5, 500, 2_000, 200
"""Each step launches two kernels of 500 us in 200 us of its host; the device is 2 ms behind at the start."""

LATE = 1_300
"""When the second kernel of the first step is launched after a pause, after the first one has started, us."""


def behind(*, is_recorded: bool, pauses: bool) -> list[Event]:
    """Return steps of a host that never waits, after four kernels of before that may be missing."""
    events: list[Event] = []
    if is_recorded:
        events += [kernel("gemm", 1 + k, KERNEL * k, KERNEL * (k + 1)) for k in range(BACKLOG // KERNEL)]
    free, at, number = BACKLOG, 0, 10
    for place in range(1, STEPS + 1):
        begin = at
        for k in range(2):
            at += 10
            if pauses and (place, k) == (1, 1):
                at = BACKLOG + LATE
                events.append(note("gc.collect", 20, at - 10))
            start = max(free, at + 5)
            events += [launch(number, at, at + 5), kernel("gemm", number, start, start + KERNEL)]
            free, number = start + KERNEL, number + 1
        at = max(at + 10, begin + HOST)
        events.append(step(place, begin, at))
    return events


@pytest.fixture(params=[True, False], ids=["recorded", "unrecorded"])
def is_recorded(request: pytest.FixtureRequest) -> bool:
    """Return whether the trace holds the work that was launched before it."""
    return bool(request.param)


def test_steps_behind_queued_work_are_alike_and_none_is_warm_up(tmp_path: Path, is_recorded: bool) -> None:
    run = open_run(write(tmp_path, behind(is_recorded=is_recorded, pauses=False)))
    replays = RunReplays(load_run_graph(run, use_cache=False))
    assert (replays.recorded_s * 1e6).round(6).tolist() == [2 * KERNEL] * STEPS
    assert (replays.steps_s([replays.recorded])[0] * 1e6).round(6).tolist() == [2 * KERNEL] * STEPS
    found = diagnose(run, jobs=1, use_cache=False)
    assert [each.title for each in found.diagnoses] == []
    assert found.silent["warm_up"] == NOTHING
    assert found.verdict is not None
    assert found.verdict.step_s == pytest.approx(2 * KERNEL / 1e6)
    assert found.verdict.parts["idle"] == pytest.approx(0, abs=1e-9)


def test_a_pause_behind_queued_work_costs_what_the_device_was_idle(tmp_path: Path, is_recorded: bool) -> None:
    """The host pauses from 20 to 3,290 us; the device has work until 2,500 and goes on 5 us after 3,300.

    The first step lasts from 2,000 to 3,805 us, and without the pause until 3,000: the queue hides the rest.
    """
    run = open_run(write(tmp_path, behind(is_recorded=is_recorded, pauses=True)))
    replays = RunReplays(load_run_graph(run, use_cache=False))
    assert (replays.recorded_s * 1e6).round(6).tolist() == [1_805] + [2 * KERNEL] * (STEPS - 1)
    gains = Gains(replays, pl.DataFrame())
    assert gains.unexplained == pytest.approx(0)
    pause = pl.DataFrame({"trace": [0], "start_ns": [20_000], "end_ns": [3_290_000]})
    (gain,) = gains.of(without_intervals(gains, pause))
    assert (gain.by_step * 1e6).round(6).tolist() == [805] + [0] * (STEPS - 1)
