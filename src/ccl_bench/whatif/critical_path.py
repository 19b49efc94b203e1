"""The critical path of steps: from the last end back to the start, along the longest waits.

A share of the path is an upper bound of the gain, since another path may be nearly as long. The answer
therefore also has the gain of a tenth less, and the second path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.result.what_if import CriticalPath, OnPath
from ccl_bench.whatif.event_graph import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.whatif.event_graph import EventGraph, Numbers, PathEvents, StepEvents, Times
    from ccl_bench.whatif.replays import PathLabels, Replays

_NONE = -1

LESS = 0.9
"""Factor on times in a sensitivity: small enough that the same path stays the longest."""

_ASKED = 6
"""Number of parts of the path with a sensitivity: each is a replay, and those after it are small."""


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A segment of the path."""

    start: float
    end: float
    event: int
    """Event at its end."""
    explained: bool
    """Whether a known operation took this time; else the event came later than all its known causes."""


class PathFinder:
    """Finds the causes that the events of a graph waited for."""

    def __init__(self, graph: EventGraph, events: PathEvents) -> None:
        self._events = events
        order = np.argsort(graph.target, kind="stable")
        bounds = np.searchsorted(graph.target[order], np.arange(graph.size + 1))
        follows = np.diff(graph.chain, prepend=-1) == 0
        # Views give plain numbers one by one as fast as lists, and hold nothing twice.
        self._at: Sequence[int] = _view(bounds)
        self._source: Sequence[int] = _view(graph.source[order])
        self._took: Sequence[float] = _view(events.values[graph.edge_value[order]])
        self._since: Sequence[float] = _view(np.where(follows, events.values[graph.value], NEVER))
        self._moments: Sequence[float] = _view(events.moments)

    def path(self, step: StepEvents) -> list[PathSegment]:
        """Return the segments that lead to the last end of a step, in order; they tile the time they span.

        The path begins at an event that waits for nothing, or at the start of the step on its rank.
        """
        moments = self._moments
        event, rank_start = int(step.ends[np.argmax(self._events.moments[step.ends])]), _NONE
        until = moments[event]
        segments: list[PathSegment] = []
        while until > step.begins[event]:
            before, took = self._binding(event, rank_start)
            if before == _NONE:
                break
            at = max(float(step.begins[before]), min(until, moments[before]))
            known_until = min(until, max(at, moments[before] + took))
            if known_until < until:
                segments.append(PathSegment(known_until, until, event, explained=False))
            if at < known_until:
                segments.append(PathSegment(at, known_until, event, explained=True))
            rank_start = event - 1
            event, until = before, at
        return segments[::-1]

    def _binding(self, event: int, rank_start: int) -> tuple[int, float]:
        """Return the event that this one waited for longest, and the time between them; -1 for none.

        A meeting waited for the rank of the path, whose start is event `rank_start`, unless another member
        arrived later by more than the uncertainty of the clocks.
        """
        moments, best, took, latest = self._moments, _NONE, 0.0, NEVER
        if self._since[event] > NEVER:
            best, took = event - 1, self._since[event]
            latest = moments[best] + took
        sources = self._source[self._at[event] : self._at[event + 1]]
        for edge, source in enumerate(sources, start=self._at[event]):
            if moments[source] + self._took[edge] > latest:
                best, took = source, self._took[edge]
                latest = moments[source] + took
        if rank_start != event - 1 and rank_start in sources:
            uncertain = max(self._events.uncertain[best], self._events.uncertain[rank_start])
            if moments[best] - moments[rank_start] <= uncertain:
                return rank_start, 0.0
        return best, took


def _view(numbers: Numbers | Times) -> Any:
    contiguous: Any = np.ascontiguousarray(numbers)
    return memoryview(contiguous)


def find_critical_path(replays: Replays, step: int | None = None) -> CriticalPath:
    """Return the mean critical path of the steps of a run, or that of one of them."""
    labels = replays.path_labels()
    places = [place for place, each in enumerate(replays.steps) if step in {None, each}]
    events = _of_places(replays.path_events(), places)
    paths = find_paths(replays.graph, events)
    length_s, on_path = _shares(replays, paths, labels)
    longest_parts = [part for part in on_path if part.kind != UNEXPLAINED][:_ASKED]
    masks = [labels.mask(part.worker, part.kind) for part in longest_parts]
    original, *less = replays.steps_s([replays.recorded, *(replays.scaled(mask, LESS) for mask in masks)])
    sensitivities = {
        f"{part.worker} {part.kind}": float((original - steps)[places].mean())
        for part, steps in zip(longest_parts, less, strict=True)
    }
    second: list[OnPath] = []
    second_s = 0.0
    if masks:
        variant = replays.scaled(masks[0], 0.0)
        changed = _of_places(replays.path_events(variant), places)
        second_s, second = _shares(replays, find_paths(replays.graph, changed), labels)
    slack = _slack(replays, labels, events)
    workers = [[labels.worker(segment.event) for segment in path] for path in paths]
    changes = sum(one != other for of_path in workers for one, other in pairwise(of_path))
    hops = changes / max(1, len(paths))
    return CriticalPath(length_s, on_path, hops, sensitivities, second_s, second, slack)


def _of_places(events: Iterable[PathEvents], places: Sequence[int]) -> list[PathEvents]:
    """Return the events of the steps at these places in the order of steps."""
    numbers, wanted_places = count(), {*places}
    return [
        replace(some, steps=[step for step in some.steps if next(numbers) in wanted_places])
        for some in events
    ]


def find_paths(graph: EventGraph, events: Iterable[PathEvents]) -> list[list[PathSegment]]:
    """Return the critical path of each step."""
    finders = [(PathFinder(graph, some), some.steps) for some in events]
    return [finder.path(step) for finder, steps in finders for step in steps]


UNEXPLAINED = "unexplained"


def _shares(
    replays: Replays, paths: Sequence[Sequence[PathSegment]], labels: PathLabels
) -> tuple[float, list[OnPath]]:
    """Return the mean length of paths, s, and its parts by worker and kind of work, largest first."""
    times: dict[tuple[str, str], float] = {}
    for segment in (each for path in paths for each in path):
        key = labels.worker(segment.event), labels.kind(segment.event) if segment.explained else UNEXPLAINED
        times[key] = times.get(key, 0.0) + segment.end - segment.start
    unit = replays.unit_s / max(1, len(paths))
    whole = sum(times.values())
    ordered = sorted(times.items(), key=lambda item: -item[1])
    return whole * unit, [OnPath(worker, kind, took * unit, took / whole) for (worker, kind), took in ordered]


def _slack(replays: Replays, labels: PathLabels, events: Sequence[PathEvents]) -> dict[str, float]:
    """Return the slack of each worker: how much later it could reach every meeting without being last, s.

    It is the smallest lead over the last member, mean over steps; a worker that is last anywhere has none.
    """
    graph, size = replays.graph, 2 * len(labels.workers)
    to_meeting = graph.target >= size
    sources, meetings = graph.source[to_meeting], graph.target[to_meeting]
    members = np.bincount(meetings, minlength=graph.size)
    several = members[meetings] > 1
    sources, meetings = sources[several], meetings[several]
    workers = labels.workers[sources // 2]
    slacks: dict[str, list[float]] = {}
    for some in events:
        arrived = some.moments[sources]
        lead = some.moments[meetings] - arrived
        for step in some.steps:
            inside = (arrived >= step.begins[sources]) & (arrived <= some.moments[step.ends].max())
            for worker in np.unique(workers[inside]).tolist():
                least = lead[inside & (workers == worker)].min()
                slacks.setdefault(worker, []).append(float(least) * replays.unit_s)
    return {worker: float(np.mean(leads)) for worker, leads in slacks.items()}
