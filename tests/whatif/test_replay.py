"""The replay of an execution graph is the timeline that one would draw by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.whatif.graph import CyclicGraphError, ExecutionGraph, replay


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], list[list[float]], list[list[float]]]:
    """Return meetings, dependencies (earlier, later), durations and delays."""
    meeting = sorted(draw(st.lists(st.integers(0, 8), min_size=1, max_size=14)))
    pairs = [(a, b) for a in range(len(meeting)) for b in range(len(meeting)) if meeting[a] < meeting[b]]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=25)) if pairs else []
    times = st.lists(st.floats(0, 100), min_size=2, max_size=2)
    rows = st.lists(times, min_size=len(meeting), max_size=len(meeting))
    order = draw(st.permutations(range(len(meeting))))
    place = {old: new for new, old in enumerate(order)}
    return (
        [meeting[old] for old in order],
        [(place[a], place[b]) for a, b in edges],
        draw(rows),
        draw(rows),
    )


@given(graphs())
def test_every_start_and_end_is_that_of_a_plain_recursion(made) -> None:
    meeting, edges, durations, delays = made
    graph = ExecutionGraph(
        np.array(meeting), np.array([b for _, b in edges], int), np.array([a for a, _ in edges], int)
    )
    found = replay(graph, np.array(durations), np.array(delays))
    for column in (0, 1):

        @cache
        def start(which: int, column: int = column) -> float:
            before = [end(a) for a, b in edges if b == which]
            return max(before) + delays[which][column] if before else 0.0

        @cache
        def end(which: int, column: int = column) -> float:
            met = max(start(other) for other in range(len(meeting)) if meeting[other] == meeting[which])
            return met + durations[which][column]

        assert found.start[:, column].tolist() == [start(which) for which in range(len(meeting))]
        assert found.end[:, column].tolist() == [end(which) for which in range(len(meeting))]
        longest = max(map(end, range(len(meeting)))) - min(map(start, range(len(meeting))))
        assert found.step_s[column] == longest


def test_operations_that_wait_for_each_other_are_refused() -> None:
    graph = ExecutionGraph(np.array([0, 1, 2]), np.array([1, 2, 1]), np.array([0, 1, 2]))
    with pytest.raises(CyclicGraphError, match="2 operations"):
        replay(graph, np.zeros((3, 1)))


def test_a_meeting_that_waits_for_one_of_its_members_is_refused() -> None:
    with pytest.raises(CyclicGraphError):
        replay(ExecutionGraph(np.array([5, 5]), np.array([1]), np.array([0])), np.zeros((2, 1)))
