"""Replays of traces written by hand: work without length, queued work, and threads of gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from local_traces import kernel, launch, note, op, step, write

from ccl_bench.run import open_run
from ccl_bench.whatif import RunReplays, load_run_graph

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from local_traces import Event

LATENCY = 5
"""From a launch to the start of its work on an idle stream, us."""


def replays(run: Path) -> RunReplays:
    return RunReplays(load_run_graph(open_run(run), use_cache=False))


@st.composite
def launched_work(draw: st.DrawFn, delays: tuple[int, ...]) -> list[Event]:
    """Return two steps of one thread that launches to three streams, and may wait for all of them.

    Most work takes no time. Each piece starts once its stream is free and its launch is 5 us old, and as much
    later as one of the `delays`, us.
    """
    events: list[Event] = []
    free: dict[int, int] = {}
    at, number = 0, 0
    for place in (1, 2):
        begin = at
        for stream in draw(st.lists(st.sampled_from([7, 8, 9]), min_size=1, max_size=8)):
            number += 1
            at += draw(st.sampled_from([0, 0, 1, 20]))
            took = draw(st.sampled_from([0, 0, 0, 3, 40]))
            start = max(free.get(stream, 0), at + LATENCY) + draw(st.sampled_from(delays))
            events += [launch(number, at, at), kernel("gemm", number, start, start + took, stream)]
            free[stream] = start + took
        if draw(st.booleans()):
            done = max(at, *free.values())
            events.append(launch(0, at, done, name="cudaDeviceSynchronize"))
            at = done
        events.append(step(place, begin, at + 1))
        at += 1
    return events


def several(*delays: int) -> st.SearchStrategy[list[list[Event]]]:
    """Return the traces of four ranks, which read in the time of two."""
    return st.lists(launched_work(delays), min_size=4, max_size=4)


@settings(max_examples=4)
@given(ranks=several(0))
def test_work_without_length_replays_as_recorded(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Event]]
) -> None:
    run = replays(write(tmp_path_factory.mktemp("run"), *ranks))
    found = run.graph.replay(run.recorded[:, None])[:, 0]
    assert found.tolist() == run.graph.recorded.tolist()


@settings(max_examples=4)
@given(ranks=several(0, 0, 8, 13, 30))
def test_work_without_length_waits_in_no_circle_and_replays_no_later_than_recorded(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Event]]
) -> None:
    run = replays(write(tmp_path_factory.mktemp("run"), *ranks))
    assert run.graph.levels
    found = run.graph.replay(run.recorded[:, None])[:, 0]
    assert (found <= run.graph.recorded).all()
    assert np.isfinite(found).all()


BUCKETS, STEP = 4, 1_000
COMPUTES, ISSUES, MOVES, GAP = 100, 10, 250, 2
"""Computing and issuing a bucket, moving it once both ranks came, and its thread's way to the next, us."""


def buckets(late: int) -> tuple[list[list[Event]], int]:
    """Return the events of two ranks with two threads of gloo, rank 1 being late, and the step's length.

    The host starts to compute after 10 us, or later; it issues bucket k when it has computed it, and updates
    parameters 5 us after the last bucket has moved. Bucket k runs on thread k modulo 2, 5 us after its issue
    or 2 us after the bucket before on that thread.
    """
    begins = (10, 10 + late)
    issued = [[begin + (COMPUTES + ISSUES) * k + COMPUTES for k in range(BUCKETS)] for begin in begins]
    came: list[list[int]] = [[], []]
    ends: list[int] = []
    for k in range(BUCKETS):
        for rank in (0, 1):
            busy = ends[k - 2] if k >= 2 else 0
            on_time = issued[rank][k] + LATENCY
            came[rank].append(max(on_time, busy + GAP) if busy > issued[rank][k] else on_time)
        ends.append(max(came[0][k], came[1][k]) + MOVES)
    updates = ends[-1] + 5
    length = updates + 60
    ranks: list[list[Event]] = [[], []]
    for rank, number in ((rank, number) for rank in (0, 1) for number in (0, 1)):
        at = STEP * number
        for k, asked in enumerate(issued[rank]):
            ranks[rank] += [
                op("aten::mm", at + asked - COMPUTES, at + asked),
                op("c10d::allreduce_", at + asked, at + asked + ISSUES),
                note("gloo:all_reduce", at + came[rank][k], at + ends[k], tid=100 + k % 2),
            ]
        ranks[rank] += [op("aten::add_", at + updates, at + updates + 50), step(number, at, at + length)]
    return ranks, length


def test_a_thread_of_gloo_is_busy_until_its_bucket_has_moved(tmp_path: Path) -> None:
    """Late by 200 us, rank 1 issues at 310, 420, 530 and 640 us. Buckets move until 565, 675, 817 and 927.

    On time it issues at 110, 220, 330 and 440, and they move until 365, 475, 617 and 727: the third and the
    fourth wait for their threads for 32 us. With any number of threads the last one would have moved at 695.
    """
    ranks, length = buckets(late=200)
    assert length == 927 + 5 + 60
    run = replays(write(tmp_path, *ranks, backend="gloo", has_group=True))
    assert (run.recorded_s * 1e6).round(6).tolist() == [length] * 2
    assert (run.steps_s([run.recorded])[0] * 1e6).round(6).tolist() == [length] * 2
    assert buckets(late=0)[1] == 727 + 5 + 60
    on_time = run.steps_s([run.without(run.matches("rank", "1"))])[0]
    assert (on_time * 1e6).round(6).tolist() == [727 + 5 + 60] * 2
