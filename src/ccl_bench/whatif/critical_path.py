"""The critical path of a step: what, from its last end back to its begin, the next thing always waited for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ccl_bench.whatif.event_graph import EventGraph

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]

_NONE = -1


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A stretch of the path, ns."""

    start: float
    end: float
    event: int
    """Event that it leads to."""
    explained: bool
    """Whether something that is known took so long; else the event came later than all it is known to wait for."""


@dataclass(frozen=True)
class PathFinder:
    """Finds what events waited for."""

    graph: EventGraph
    stays: Callable[[int, Numbers], bool] | None = None
    """Whether clocks are too uncertain to leave the rank of an event for what it seems to have waited for."""

    @cached_property
    def _incoming(self) -> tuple[Numbers, Numbers]:
        """The edges by the event that waits, and where those of each event begin."""
        order = np.argsort(self.graph.target, kind="stable")
        return order, np.searchsorted(self.graph.target[order], np.arange(self.graph.size + 1))

    def path(self, last: int, begin: float, moments: Times, values: Times) -> list[PathSegment]:
        """Return the segments from `begin`, ns, to the moment of an event, in order; they tile that time.

        `moments` are of events, `values` the times of edges, ns. Where the path begins later than `begin`, the
        first segment is unexplained.
        """
        found: list[PathSegment] = []
        event, until = last, float(moments[last])
        while until > begin:
            before, took = self._binding(event, moments, values)
            at = begin if before == _NONE else max(begin, min(until, float(moments[before])))
            explained_from = at if before == _NONE else min(until, max(at, float(moments[before]) + took))
            if before == _NONE:
                explained_from = begin
            if explained_from < until:
                found.append(PathSegment(explained_from, until, event, explained=False))
            if at < explained_from:
                found.append(PathSegment(at, explained_from, event, explained=True))
            if before == _NONE:
                break
            event, until = before, at
        return found[::-1]

    def _binding(self, event: int, moments: Times, values: Times) -> tuple[int, float]:
        """Return the event that this one waited for longest, and for how long after it; -1 for none."""
        graph = self.graph
        order, at = self._incoming
        edges = order[at[event] : at[event + 1]]
        sources, took = graph.source[edges], values[graph.edge_value[edges]]
        if event and graph.chain[event] == graph.chain[event - 1]:
            sources = np.append(sources, event - 1)
            took = np.append(took, values[graph.value[event]])
        if not sources.size:
            return _NONE, 0.0
        best = int(np.argmax(moments[sources] + took))
        return int(sources[best]), float(took[best])


def sum_segments(segments: Sequence[PathSegment], names: Sequence[str]) -> dict[str, float]:
    """Return the time of segments by the name that each has, ns."""
    found: dict[str, float] = {}
    for segment, name in zip(segments, names, strict=True):
        found[name] = found.get(name, 0.0) + segment.end - segment.start
    return found
