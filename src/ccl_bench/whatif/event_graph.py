"""The event graph of a run: when operations start and end, what each moment waits for, and its replay."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.whatif.graph import CyclicGraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]

NEVER = -np.inf
"""Time of an event that nothing brings about."""

_ROUNDS = 200
"""Rounds in which the order of events must settle; each mends what clocks of ranks contradict."""


@dataclass(frozen=True)
class _Segment:
    """Events of one chain, one after the other, of which everything that they wait for is known before."""

    first: int
    until: int
    continues: bool
    """Whether an event of the chain comes before."""
    sources: Numbers
    values: Numbers
    """Of each edge from elsewhere: the event that it comes from, and its value."""
    targets: Numbers
    """Which events of the segment have such edges, by place."""
    targets_at: Numbers
    """Where the edges of each of them begin."""


@dataclass(frozen=True)
class EventGraph:
    """Events in chains, and edges between them; each event happens once all that it waits for has passed.

    An event waits for the one before it in its chain, and for those at the other end of its edges, each for
    some time: `values` number these times, so that one may stand at several edges.
    """

    chain: Numbers
    """Chain of each event; those of one chain stand side by side, in order."""
    value: Numbers
    """Value of the time since the event before in the chain."""
    earliest: Times
    """Time before which an event does not happen, ns."""
    source: Numbers
    """For each edge the event that is waited for."""
    target: Numbers
    """For each edge the event that waits."""
    edge_value: Numbers
    """For each edge the value of its time."""
    recorded: Times
    """When each event happened, ns."""

    @property
    def size(self) -> int:
        """Number of events."""
        return len(self.chain)

    @cached_property
    def segments(self) -> tuple[_Segment, ...]:
        """The events in an order of replay; raises CyclicGraphError where events wait for each other."""
        order = np.argsort(self._moments()[self.target], kind="stable")
        level = self._levels(order)
        opens = np.flatnonzero(np.append(True, (np.diff(self.chain) != 0) | (np.diff(level) != 0)))
        until = np.append(opens[1:], self.size)
        by_target = np.argsort(self.target, kind="stable")
        targets = self.target[by_target]
        begins, ends = np.searchsorted(targets, opens), np.searchsorted(targets, until)
        continues = (
            np.append(False, self.chain[opens[1:]] == self.chain[opens[1:] - 1]) if opens.size else opens
        )
        found = []
        for number in np.argsort(level[opens], kind="stable").tolist():
            mine = by_target[begins[number] : ends[number]]
            places, at = np.unique(self.target[mine] - opens[number], return_index=True)
            found.append(
                _Segment(
                    int(opens[number]),
                    int(until[number]),
                    bool(continues[number]),
                    self.source[mine],
                    self.edge_value[mine],
                    places,
                    at,
                )
            )
        return tuple(found)

    def _moments(self) -> Times:
        """Return times in which no event comes before one that it waits for, near those recorded."""
        moments = self.recorded - self.recorded.min(initial=0)
        apart = (moments.max(initial=0) + 1) * self.chain
        for _ in range(_ROUNDS):
            before = moments.copy()
            np.maximum.at(moments, self.target, moments[self.source])
            moments = _ordered(moments, apart)
            if np.array_equal(moments, before):
                return moments
        raise CyclicGraphError("operations wait for each other")

    def _levels(self, order: Numbers) -> Numbers:
        """Return for each event how often what it waits for changed its chain; edges are given in order."""
        source, target = self.source[order].tolist(), self.target[order].tolist()
        chain = self.chain.tolist()
        places: dict[int, list[int]] = {number: [-1] for number in set(chain)}
        levels: dict[int, list[int]] = {number: [0] for number in places}
        for _ in range(_ROUNDS):
            changed = False
            for start, end in zip(source, target, strict=True):
                of, to = chain[start], chain[end]
                if of == to:
                    continue
                known = levels[of][bisect_right(places[of], start) - 1] + 1
                at = bisect_right(places[to], end)
                if levels[to][at - 1] < known:
                    changed = True
                    _raise_from(places[to], levels[to], at, end, known)
            if not changed:
                break
        else:
            raise CyclicGraphError("operations wait for each other")
        found = np.zeros(self.size, dtype=np.int64)
        for number in places:
            first, last = np.searchsorted(self.chain, [number, number + 1])
            at = np.maximum(places[number], first)
            found[first:last] = np.repeat(levels[number], np.diff(np.append(at, last)))
        return found

    def replay(self, values: Times) -> Times:
        """Return when each event happens, ns, `[event, column]`, for `values` of `[value, column]`, ns."""
        moments = np.empty((self.size, values.shape[1]))
        for each in self.segments:
            took = values[self.value[each.first : each.until]]
            found = np.repeat(self.earliest[each.first : each.until, None], values.shape[1], axis=1)
            if each.targets.size:
                arrived = moments[each.sources] + values[each.values]
                latest = np.maximum.reduceat(arrived, each.targets_at, axis=0)
                found[each.targets] = np.maximum(found[each.targets], latest)
            if each.continues:
                found[0] = np.maximum(found[0], moments[each.first - 1] + took[0])
            took[0] = 0
            passed = np.cumsum(took, axis=0, out=took)
            found -= passed
            np.maximum.accumulate(found, axis=0, out=found)
            found += passed
            moments[each.first : each.until] = found
        return moments


def _ordered(moments: Times, apart: Times) -> Times:
    """Return moments that do not decrease along a chain; `apart` keeps chains from each other."""
    found: Times = np.maximum.accumulate(moments + apart) - apart
    return found


def _raise_from(places: list[int], levels: list[int], at: int, event: int, level: int) -> None:
    """Raise the levels of a chain from an event on, to at least a level."""
    until = at
    while until < len(levels) and levels[until] <= level:
        until += 1
    if places[at - 1] == event:
        at -= 1
    places[at:until], levels[at:until] = [event], [level]
