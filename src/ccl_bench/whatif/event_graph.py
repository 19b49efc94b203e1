"""The event graph of a run: starts and ends of operations, their dependencies, and its replay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.whatif.native import NativeReplay, replay_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]
    Mask = NDArray[np.bool_]


class CyclicGraphError(ValueError):
    """Operations wait for each other in a cycle, so none can begin."""


NEVER = -np.inf
"""Time of an event without a cause."""


@dataclass(frozen=True)
class _Level:
    """Events whose edges all come from levels computed before, in pieces of chains."""

    events: Numbers
    """Pieces one after the other, each in the order of its chain."""
    opens: Numbers
    """Start of each piece."""
    sources: Numbers
    """For each edge its source event; edges are in the order of their targets."""
    edge_values: Numbers
    targets: Numbers
    """Indices of the events that have edges."""
    targets_at: Numbers
    """Start of the edges of each of them."""

    def replay(self, moments: Times, values: Times, value: Numbers) -> None:
        """Set the times of the events, which hold the earliest possible ones."""
        times = moments[self.events]
        if self.targets.size:
            passed = moments[self.sources] + values[self.edge_values]
            latest = np.maximum.reduceat(passed, self.targets_at, axis=0)
            times[self.targets] = np.maximum(times[self.targets], latest)
        if len(self.opens) < len(self.events):
            # An event waits for the one before it in its piece, plus the time between them. Minus the time
            # since the start of its piece, the time of an event is a running maximum. All pieces are scanned
            # at once, with offsets so large that none reaches into the next.
            took = values[value[self.events]]
            took[self.opens] = 0
            since = np.cumsum(took, axis=0, out=took)
            times -= since
            finite = times[np.isfinite(times)]
            apart = finite.max() - finite.min() + 1
            sizes = np.diff(np.append(self.opens, len(self.events)))
            shift = np.repeat(np.arange(len(sizes)) * apart, sizes)[:, None]
            times += shift
            np.maximum.accumulate(times, axis=0, out=times)
            times -= shift
            times += since
        moments[self.events] = times


@dataclass(frozen=True)
class EventGraph:
    """Events in chains, and edges between them; each event happens when all its causes have passed.

    An event waits for the one before it in its chain, and for the sources of its edges, each plus a time:
    `values` are indices of these times, so that several edges may share one.
    """

    chain: Numbers
    """Chain of each event; events of one chain are adjacent, in order."""
    value: Numbers
    """Value of the time since the event before in the chain."""
    earliest: Times
    """Time before which an event does not happen."""
    source: Numbers
    """For each edge its source event."""
    target: Numbers
    """For each edge its target event, which waits."""
    edge_value: Numbers
    """For each edge the value of its time."""
    recorded: Times
    """When each event happened."""

    @property
    def size(self) -> int:
        """Number of events."""
        return len(self.chain)

    @cached_property
    def levels(self) -> tuple[_Level, ...]:
        """The events in an order of replay; raises CyclicGraphError if events wait for each other."""
        if not self.size:
            return ()
        level = self._levels()
        opens = np.append(True, (np.diff(self.chain) != 0) | (np.diff(level) != 0))
        continues = np.flatnonzero(opens & (np.diff(self.chain, prepend=-1) == 0))
        source = np.concatenate([self.source, continues - 1])
        target = np.concatenate([self.target, continues])
        value = np.concatenate([self.edge_value, self.value[continues]])
        order = np.argsort(level, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(self.size)
        by_target = np.argsort(place[target], kind="stable")
        source, target, value = source[by_target], place[target[by_target]], value[by_target]
        bounds = np.searchsorted(level[order], np.arange(level.max() + 2))
        edges = np.searchsorted(target, bounds)
        levels = []
        for first, until, begin, end in zip(bounds, bounds[1:], edges, edges[1:], strict=False):
            events = order[first:until]
            reached, at = np.unique(target[begin:end] - first, return_index=True)
            starts = np.flatnonzero(opens[events])
            levels.append(_Level(events, starts, source[begin:end], value[begin:end], reached, at))
        return tuple(levels)

    def _levels(self) -> Numbers:
        """Return for each event the largest number of edges on its dependency paths.

        Chains are cut into pieces that wait for edges only at their first event; each piece follows its
        causes [A. B. Kahn, Topological sorting of large networks, 1962].
        """
        opens = np.zeros(self.size, dtype=np.bool_)
        opens[self.target] = True
        opens[np.flatnonzero(np.diff(self.chain, prepend=-1))] = True
        piece = np.cumsum(opens) - 1
        chain = self.chain[opens]
        source, target = piece[self.source], piece[self.target]
        follows = np.flatnonzero(chain[1:] == chain[:-1])
        earlier, later = np.append(source, follows), np.append(target, follows + 1)
        steps = np.append(np.ones_like(source), np.zeros_like(follows))
        order = np.argsort(earlier, kind="stable")
        begins = np.searchsorted(earlier[order], np.arange(len(chain) + 1)).tolist()
        reached, steps_on = later[order].tolist(), steps[order].tolist()
        missing = np.bincount(later, minlength=len(chain)).tolist()
        level = [0] * len(chain)
        ready = [number for number, count in enumerate(missing) if not count]
        visited_count = 0
        while ready:
            number = ready.pop()
            visited_count += 1
            depth = level[number]
            for edge in range(begins[number], begins[number + 1]):
                other = reached[edge]
                level[other] = max(level[other], depth + steps_on[edge])
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        if visited_count < len(chain):
            raise CyclicGraphError(f"{len(chain) - visited_count} operations or meetings wait for each other")
        levels: Numbers = np.array(level, dtype=np.int64)[piece]
        return levels

    @cached_property
    def _native(self) -> NativeReplay | None:
        library = replay_library()
        if library is None:
            return None
        edges = {"source": self.source, "target": self.target, "edge_value": self.edge_value}
        return NativeReplay(library, chain=self.chain, value=self.value, **edges)

    @property
    def is_native(self) -> bool:
        """Whether it is replayed in C, each column on its own."""
        return self._native is not None

    def check_order(self) -> None:
        """Raise CyclicGraphError if events wait for each other."""
        if not (self._native and self._native.is_whole):
            self.levels  # noqa: B018

    def replay(self, values: Times, earliest: Times | None = None) -> Times:
        """Return the time of each event, `[event, column]`, for `values` of `[value, column]`.

        `earliest` may differ between columns. All times have the unit of the values. Columns whose values lie
        side by side are replayed fastest.
        """
        self.check_order()
        first = self.earliest[:, None] if earliest is None else earliest
        columns = values.shape[1] // first.shape[1]
        if self._native:
            moments: Times = np.repeat(np.ascontiguousarray(first.T), columns, axis=0)
            self._native.replay(moments, np.ascontiguousarray(values.T))
            return moments.T
        moments = np.repeat(first, columns, axis=1)
        in_rows = np.ascontiguousarray(values)
        for level in self.levels:
            level.replay(moments, in_rows, self.value)
        return moments


@dataclass(frozen=True)
class PathEvents:
    """Times of the events of a graph and of its edges."""

    moments: Times
    values: Times
    """Times of edges."""
    uncertain: Times
    """For each event the uncertainty of the clock of its rank."""
    steps: Sequence[StepEvents]


@dataclass(frozen=True)
class StepEvents:
    """The events of a step."""

    begins: Times
    """For each event the start of the step on its rank."""
    ends: Numbers
    """Events at which an operation of the step ends."""
