"""The event graph of a run: when operations start and end, what each moment waits for, and its replay."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]


class CyclicGraphError(ValueError):
    """Operations wait for each other, so that none of them can begin."""


NEVER = -np.inf
"""Time of an event that nothing brings about."""

_ROUNDS = 200
"""Rounds in which the order of events must settle; each mends what clocks of ranks contradict."""


@dataclass(frozen=True)
class _Incoming:
    """Edges to some events, by event."""

    sources: Numbers
    values: Numbers
    """Of each edge: the event that it comes from, and its value."""
    targets: Numbers
    """Which of the events have edges, by place."""
    targets_at: Numbers
    """Where the edges of each of them begin."""

    def latest(self, moments: Times, values: Times) -> Times:
        """Return when the last of what each event with edges waits for has passed."""
        found: Times = np.maximum.reduceat(
            moments[self.sources] + values[self.values], self.targets_at, axis=0
        )
        return found


@dataclass(frozen=True)
class _Segment:
    """Events of one chain, one after the other, of which everything that they wait for is known before."""

    first: int
    until: int
    continues: bool
    """Whether an event of the chain comes before."""
    incoming: _Incoming

    def replay(self, moments: Times, values: Times, value: Numbers) -> None:
        """Set the moments of the events, which hold the earliest ones."""
        took = values[value[self.first : self.until]]
        found = moments[self.first : self.until]
        targets = self.incoming.targets
        if targets.size:
            found[targets] = np.maximum(found[targets], self.incoming.latest(moments, values))
        if self.continues:
            found[0] = np.maximum(found[0], moments[self.first - 1] + took[0])
        took[0] = 0
        passed = np.cumsum(took, axis=0, out=took)
        found -= passed
        np.maximum.accumulate(found, axis=0, out=found)
        found += passed


@dataclass(frozen=True)
class _Singles:
    """Events of which each is a segment, at one level."""

    events: Numbers
    incoming: _Incoming

    def replay(self, moments: Times, values: Times, value: Numbers) -> None:
        """Set the moments of the events, which hold the earliest ones."""
        del value
        reached = self.events[self.incoming.targets]
        if reached.size:
            moments[reached] = np.maximum(moments[reached], self.incoming.latest(moments, values))


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
    """Time before which an event does not happen."""
    source: Numbers
    """For each edge the event that is waited for."""
    target: Numbers
    """For each edge the event that waits."""
    edge_value: Numbers
    """For each edge the value of its time."""
    recorded: Times
    """When each event happened; replays follow this order."""

    @property
    def size(self) -> int:
        """Number of events."""
        return len(self.chain)

    @cached_property
    def segments(self) -> tuple[_Segment | _Singles, ...]:
        """The events in an order of replay; raises CyclicGraphError where events wait for each other."""
        order = np.argsort(self._moments()[self.target], kind="stable")
        level = self._levels(order)
        opens = np.flatnonzero(np.append(True, (np.diff(self.chain) != 0) | (np.diff(level) != 0)))
        if not self.size:
            return ()
        until = np.append(opens[1:], self.size)
        continues = np.append(False, self.chain[opens[1:]] == self.chain[opens[1:] - 1])
        source, target, edge_value = self._edges_with_singles(opens[(until - opens == 1) & continues])
        found: list[tuple[int, _Segment | _Singles]] = []
        singles = opens[until - opens == 1]
        for of in np.unique(level[singles]).tolist():
            events = singles[level[singles] == of]
            found.append((of, _Singles(events, _incoming(source, target, edge_value, events))))
        for number in np.flatnonzero(until - opens > 1).tolist():
            events = np.arange(opens[number], until[number])
            incoming = _incoming(source, target, edge_value, events)
            segment = _Segment(int(opens[number]), int(until[number]), bool(continues[number]), incoming)
            found.append((int(level[opens[number]]), segment))
        return tuple(segment for _, segment in sorted(found, key=lambda each: each[0]))

    def _edges_with_singles(self, singles: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return all edges in order of target, also those of the chain to events that stand alone."""
        source = np.concatenate([self.source, singles - 1])
        target = np.concatenate([self.target, singles])
        value = np.concatenate([self.edge_value, self.value[singles]])
        order = np.argsort(target, kind="stable")
        return source[order], target[order], value[order]

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

    def replay(self, values: Times, earliest: Times | None = None) -> Times:
        """Return when each event happens, `[event, column]`, for `values` of `[value, column]`.

        `earliest` may be other for each column. All times have the unit of the values.
        """
        first = self.earliest[:, None] if earliest is None else earliest
        moments: Times = np.repeat(first, values.shape[1] // first.shape[1], axis=1)
        for segment in self.segments:
            segment.replay(moments, values, self.value)
        return moments


def _incoming(source: Numbers, target: Numbers, value: Numbers, events: Numbers) -> _Incoming:
    """Return the edges to some events; edges are in order of target, and events too."""
    begins, ends = np.searchsorted(target, events), np.searchsorted(target, events, side="right")
    counts = ends - begins
    edges = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    reached = np.flatnonzero(counts)
    at = np.cumsum(counts[reached]) - counts[reached]
    return _Incoming(source[edges], value[edges], reached, at)


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
