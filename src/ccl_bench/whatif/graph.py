"""The execution graph: operations, what each waits for, and their replay with other durations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]


class CyclicGraphError(ValueError):
    """Operations wait for each other, so that none of them can begin."""


@dataclass(frozen=True)
class _Level:
    """Operations whose dependencies all lie in earlier levels, members of a meeting side by side."""

    operations: Numbers
    meets_at: Numbers
    """Where each meeting begins in `operations`."""
    sizes: Numbers
    """Members of each meeting."""
    waiting: Numbers
    """Which of `operations` wait for another, by place."""
    awaited: Numbers
    """What those wait for, one after the other."""
    awaited_at: Numbers
    """Where the dependencies of each of them begin in `awaited`."""


@dataclass(frozen=True)
class ExecutionGraph:
    """What each operation waits for; operations are numbered from 0.

    An operation is ready when all that it waits for has ended. The members of a meeting, such as the ranks of
    a collective, begin to move data together, when the last of them is ready; each ends its duration later.
    """

    meeting: Numbers
    """Meeting of each operation, any number; those of one number meet."""
    later: Numbers
    """For each dependency the operation that waits."""
    earlier: Numbers
    """For each dependency the operation that is waited for."""

    @property
    def size(self) -> int:
        """Number of operations."""
        return len(self.meeting)

    @cached_property
    def levels(self) -> tuple[_Level, ...]:
        """The operations in an order in which they can be replayed; raises CyclicGraphError without one."""
        return tuple(self._levels())

    def _levels(self) -> Iterator[_Level]:
        _, meeting = np.unique(self.meeting, return_inverse=True)
        by_meeting = np.argsort(meeting, kind="stable")
        members_at = np.concatenate([[0], np.cumsum(np.bincount(meeting))])
        by_later = np.argsort(self.later, kind="stable")
        earlier = self.earlier[by_later]
        needs_at = np.concatenate([[0], np.cumsum(np.bincount(self.later, minlength=self.size))])
        edges = np.unique(np.stack([meeting[self.earlier], meeting[self.later]], axis=1), axis=0)
        leaves_at = np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=len(members_at) - 1))])
        missing = np.bincount(edges[:, 1], minlength=len(members_at) - 1)
        ready = np.flatnonzero(missing == 0)
        placed = 0
        while ready.size:
            placed += ready.size
            sizes = np.diff(members_at)[ready]
            operations = by_meeting[_ranges(members_at[ready], sizes)]
            counts = np.diff(needs_at)[operations]
            waiting = np.flatnonzero(counts)
            yield _Level(
                operations,
                _begins(sizes),
                sizes,
                waiting,
                earlier[_ranges(needs_at[operations], counts)],
                _begins(counts[waiting]),
            )
            reached = edges[_ranges(leaves_at[ready], np.diff(leaves_at)[ready]), 1]
            np.subtract.at(missing, reached, 1)
            candidates = np.unique(reached)
            ready = candidates[missing[candidates] == 0]
        if placed < len(members_at) - 1:
            raise CyclicGraphError(
                f"{len(members_at) - 1 - placed} operations or meetings wait for each other"
            )


def _ranges(starts: Numbers, sizes: Numbers) -> Numbers:
    """Return the numbers of several ranges, one after the other."""
    return np.repeat(starts - _begins(sizes), sizes) + np.arange(sizes.sum())


def _begins(sizes: Numbers) -> Numbers:
    """Return where each of several ranges begins when they stand one after the other."""
    return np.cumsum(sizes) - sizes


@dataclass(frozen=True)
class Replayed:
    """When operations start and end, s: `[operation, column]`."""

    start: Times
    end: Times

    @property
    def step_s(self) -> Times:
        """From the first start to the last end of each column, s."""
        found: Times = self.end.max(axis=0) - self.start.min(axis=0)
        return found


def replay(
    graph: ExecutionGraph, durations: Times, delays: Times | None = None, starts: Times | None = None
) -> Replayed:
    """Return when each operation starts and ends, in all columns at once.

    `durations`, `delays` and `starts` are `[operation, column]`, s; a column is a step, or a step of a
    scenario. An operation starts `delays` after it is ready; one that waits for nothing starts at `starts`, 0
    by default. The duration of a member of a meeting counts from when the last member has started.
    """
    start, end = np.zeros_like(durations), np.empty_like(durations)
    for level in graph.levels:
        begun = np.zeros((len(level.operations), durations.shape[1]))
        if starts is not None:
            begun = starts[level.operations]
        if level.waiting.size:
            begun[level.waiting] = np.maximum.reduceat(end[level.awaited], level.awaited_at, axis=0)
            if delays is not None:
                begun[level.waiting] += delays[level.operations[level.waiting]]
        start[level.operations] = begun
        met = np.maximum.reduceat(begun, level.meets_at, axis=0)
        end[level.operations] = np.repeat(met, level.sizes, axis=0) + durations[level.operations]
    return Replayed(start, end)


def last_before(graph: ExecutionGraph, ends: Times) -> Times:
    """Return when the last of what each operation waits for ended, -inf where it waits for nothing."""
    found = np.full_like(ends, -np.inf)
    np.maximum.at(found, graph.later, ends[graph.earlier])
    return found


def last_start(graph: ExecutionGraph, starts: Times) -> Times:
    """Return when the last member of each operation's meeting started."""
    numbers, meeting = np.unique(graph.meeting, return_inverse=True)
    found = np.full((len(numbers), starts.shape[1]), -np.inf)
    np.maximum.at(found, meeting, starts)
    return found[meeting]
