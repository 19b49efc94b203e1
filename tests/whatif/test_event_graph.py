"""The replay of events is what a plain recursion finds, and impossible graphs are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccl_bench.trace.native.library import VARIABLE
from ccl_bench.whatif.event_graph import NEVER, CyclicGraphError, EventGraph


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Return chains of events, edges forward in time between them, and two columns of values."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    size = sum(lengths)
    chain = [number for number, length in enumerate(lengths) for _ in range(length)]
    time = draw(st.permutations(range(size)))
    recorded = [0] * size
    for number in range(len(lengths)):
        mine = [at for at in range(size) if chain[at] == number]
        for at, moment in zip(mine, sorted(time[at] for at in mine), strict=True):
            recorded[at] = moment
    pairs = [(a, b) for a in range(size) for b in range(size) if recorded[a] < recorded[b]]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    values = st.lists(st.integers(-3, 50), min_size=2, max_size=2)
    return {
        "chain": chain,
        "recorded": recorded,
        "edges": edges,
        "values": draw(st.lists(values, min_size=size + len(edges), max_size=size + len(edges))),
        "earliest": draw(st.lists(st.one_of(st.integers(0, 30)), min_size=size, max_size=size)),
    }


IN_ONE_CHAIN = {
    "chain": [0, 0, 0],
    "recorded": [0, 1, 2],
    "edges": [(1, 2)],
    "values": [[0, 0], [0, 1], [0, 0], [0, 1]],
    "earliest": [0, 0, 0],
}
"""An event that waits longer for an edge from its own chain than for the event before it."""


@example(IN_ONE_CHAIN)
@given(graphs())
def test_every_event_happens_when_a_plain_recursion_says(made: dict[str, Any]) -> None:
    chain, edges, values = made["chain"], made["edges"], made["values"]
    size = len(chain)
    graph = EventGraph(
        chain=np.array(chain),
        value=np.arange(size),
        earliest=np.array(made["earliest"], dtype=float),
        source=np.array([a for a, _ in edges], dtype=int),
        target=np.array([b for _, b in edges], dtype=int),
        edge_value=size + np.arange(len(edges)),
        recorded=np.array(made["recorded"], dtype=float),
    )
    found = graph.replay(np.array(values, dtype=float))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "0")
        assert np.array_equal(replace(graph).replay(np.array(values, dtype=float)), found)
    for column in (0, 1):

        @cache
        def moment(event: int, column: int = column) -> float:
            waits = [made["earliest"][event]]
            if event and chain[event - 1] == chain[event]:
                waits.append(moment(event - 1) + values[event][column])
            waits += [
                moment(a) + values[size + number][column] for number, (a, b) in enumerate(edges) if b == event
            ]
            return max(waits)

        assert found[:, column].tolist() == [moment(event) for event in range(size)]


@pytest.mark.parametrize("native", ["1", "0"])
def test_events_that_wait_for_each_other_are_refused(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, native)
    nothing = np.full(4, NEVER)
    edges = np.array([1, 3]), np.array([2, 0])
    graph = EventGraph(
        np.array([0, 0, 1, 1]), np.zeros(4, int), nothing, *edges, np.zeros(2, int), np.array([0.0, 1, 2, 3])
    )
    with pytest.raises(CyclicGraphError, match="wait for each other"):
        graph.replay(np.zeros((1, 1)))
