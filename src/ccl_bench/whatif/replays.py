"""Replays: their interface for scenarios and answers, and replays of a table of operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import UsageError
from ccl_bench.whatif.event_graph import PathEvents, StepEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from ccl_bench.base.findings import Finding
    from ccl_bench.whatif.event_graph import EventGraph, Mask, Times
    from ccl_bench.whatif.operation_table import OperationTable


@dataclass(frozen=True)
class Names:
    """The name of each operation of one kind, "" for those that have none."""

    unique_names: list[str]
    """Every name once, in order."""
    codes: NDArray[np.int64]
    """For each operation the index of its name in `unique_names`."""

    def mask(self, names: Iterable[str]) -> Mask:
        """Return a mask of the operations that have one of some names."""
        wanted_names = {*names}
        mask: Mask = np.isin(
            self.codes, [place for place, name in enumerate(self.unique_names) if name in wanted_names]
        )
        return mask


@dataclass(frozen=True)
class PathLabels:
    """Owners of the events of a graph; the events of operation i are `2 i` and `2 i + 1`."""

    workers: NDArray[np.str_]
    """Worker of each operation."""
    starts: NDArray[np.str_]
    """Kind of the time before the start of each operation."""
    ends: NDArray[np.str_]
    """Kind of each operation."""
    member: NDArray[np.int64]
    """For each meeting a member; meetings are the events after those of operations."""

    def operation(self, event: int) -> int:
        """Return the operation that an event belongs to; of a meeting that of a member."""
        size = len(self.workers)
        return event // 2 if event < 2 * size else int(self.member[event - 2 * size])

    def worker(self, event: int) -> str:
        """Return the worker of an event."""
        return str(self.workers[self.operation(event)])

    def kind(self, event: int) -> str:
        """Return the kind of work before an event."""
        before = event % 2 == 0 and event < 2 * len(self.workers)
        return str((self.starts if before else self.ends)[self.operation(event)])

    def mask(self, worker: str, kind: str) -> Mask:
        """Return the operations of a kind of a worker."""
        mask: Mask = (self.workers == worker) & (self.ends == kind)
        return mask


_BYTES = 1 << 28
"""Of one array of times; more variants are replayed one after the other, for a laptop has room for a few."""


class Replays(ABC):
    """Replays of recorded operations with other times.

    A variant is an array of the times of all operations; a mask has one entry an operation.
    """

    name: str
    graph: EventGraph
    unit_s: float
    """Unit of times, in s."""
    steps: Sequence[int]
    findings: Sequence[Finding]
    idealisation: str
    """Definition of the ideal time, in words."""
    kinds: tuple[str, ...]
    """Kinds of names that operations have, such as `rank`."""
    kinds_of_communication: str
    """The kind that names collectives."""
    answered: tuple[str, ...]
    """The kinds that answers list."""
    recorded_s: Times
    """Length of each step as recorded, s."""
    unmet: float = 0.0
    """Share of the steps in communication with unknown members."""

    @property
    @abstractmethod
    def recorded(self) -> Times:
        """The variant with the recorded times."""

    @property
    @abstractmethod
    def ideal(self) -> Times:
        """The variant with all ideal times."""

    @property
    @abstractmethod
    def is_compute(self) -> Mask:
        """Whether each operation computes; others move data."""

    @abstractmethod
    def names(self, kind: str) -> Names:
        """Return the names of a kind, as answers list them."""

    @abstractmethod
    def matches(self, kind: str, name: str) -> Mask:
        """Return a mask of the operations that match a name of a kind."""

    @abstractmethod
    def without(self, mask: Mask) -> Times:
        """Return the variant in which some operations take their ideal time, computed from the others."""

    @abstractmethod
    def scaled(self, mask: Mask, factor: float) -> Times:
        """Return the variant in which some operations take their own time by a factor."""

    @abstractmethod
    def ideal_but(self, mask: Mask) -> Times:
        """Return the variant in which all but some operations take their ideal time."""

    @abstractmethod
    def transfer_s(self, mask: Mask) -> Times:
        """Return the time in which some operations move data in each step, on the worker with the most, s."""

    @abstractmethod
    def on_network(self, bandwidth: float, latency_s: float) -> Times:
        """Return the variant in which communication of known size goes over another network.

        `bandwidth` is a bus bandwidth, byte/s. Raises UsageError if no size is recorded.
        """

    @property
    @abstractmethod
    def workers(self) -> dict[str, Mask]:
        """The operations of each worker, by rank and stage as `rank/stage`."""

    @abstractmethod
    def path_labels(self) -> PathLabels:
        """Return the labels of the events."""

    @abstractmethod
    def path_events(self, variant: Times | None = None) -> list[PathEvents]:
        """Return the events of all steps, of a variant or as recorded."""

    @abstractmethod
    def _replay(self, variants: Sequence[Times]) -> list[Times]:
        """Return the length of each step, s, for each of several variants."""

    def steps_s(
        self,
        variants: Iterable[Times],
        progress: Callable[[int, int], None] | None = None,
        total: int = 0,
    ) -> list[Times]:
        """Return the length of each step, s, for each variant; many are replayed in one pass in Python."""
        at_once = 1 if self.graph.is_native else max(1, _BYTES // max(1, 2 * self.recorded.nbytes))
        lengths: list[Times] = []
        waiting: list[Times] = []
        for variant in variants:
            waiting.append(variant)
            if len(waiting) == at_once:
                lengths += self._replay(waiting)
                waiting = []
                if progress:
                    progress(len(lengths), total)
        lengths += self._replay(waiting) if waiting else []
        if progress:
            progress(len(lengths), total)
        return lengths


COMPUTE, TRANSFER = "compute", "transfer"
"""Kinds of operations on the critical path."""


class TableReplays(Replays):
    """Replays of the operations of a table; a variant is `[operation, step]`, s."""

    idealisation = (
        "computing takes the mean of its type over ranks, stages and steps, communication the median transfer"
    )
    kinds = answered = ("rank", "stage", "worker", "operation")
    kinds_of_communication = "operation"

    def __init__(self, table: OperationTable) -> None:
        self.table = table
        self.name, self.steps, self.findings = table.name, table.steps, table.findings
        self.recorded_s = table.recorded_s
        self.graph, self.unit_s = table.graph, 1.0

    @property
    def recorded(self) -> Times:
        """The recorded times."""
        return self.table.duration

    @cached_property
    def ideal(self) -> Times:
        """The time that each operation would take without stragglers."""
        durations = np.empty_like(self.table.duration)
        for name in np.unique(self.table.operation):
            mask = self.table.operation == name
            typical = np.mean if self.is_compute[mask][0] else np.median
            durations[mask] = typical(self.table.duration[mask])
        return durations

    @property
    def is_compute(self) -> Mask:
        """Whether each operation computes."""
        return self.table.is_compute

    def names(self, kind: str) -> Names:
        """Return the rank, stage, worker (`rank/stage`) or operation of each operation."""
        table = self.table
        ranks, stages = table.rank.astype(np.str_), table.stage.astype(np.str_)
        columns = {
            "rank": ranks,
            "stage": stages,
            "worker": np.char.add(np.char.add(ranks, "/"), stages),
            "operation": table.shown_operation,
        }
        unique_names, codes = np.unique(columns[kind], return_inverse=True)
        return Names(unique_names.tolist(), codes)

    def matches(self, kind: str, name: str) -> Mask:
        """Return a mask of the operations with a name; sends and receives also have their own names."""
        mask = self.names(kind).mask([name])
        return mask | (self.table.operation == name) if kind == "operation" else mask

    def without(self, mask: Mask) -> Times:
        """Return recorded times, ideal ones for some operations."""
        return np.where(mask[:, None], self.ideal, self.recorded)

    def scaled(self, mask: Mask, factor: float) -> Times:
        """Return recorded times, by a factor for some operations."""
        return np.where(mask[:, None], factor * self.recorded, self.recorded)

    def ideal_but(self, mask: Mask) -> Times:
        """Return ideal times, recorded ones for some operations."""
        return np.where(mask[:, None], self.recorded, self.ideal)

    def transfer_s(self, mask: Mask) -> Times:
        """Return the time in which some operations move data in each step, on the worker with the most, s."""
        moved = np.where(mask[:, None], self.recorded, 0)
        longest: Times = np.max(
            [moved[worker_rows].sum(axis=0) for worker_rows in self.workers.values()], axis=0
        )
        return longest

    def on_network(self, bandwidth: float, latency_s: float) -> Times:
        """Refuse: a table of operations states no sizes."""
        del bandwidth, latency_s
        raise UsageError("a table of operations states no sizes of messages", fix="give a run with traces")

    @property
    def workers(self) -> dict[str, Mask]:
        """The operations of each stage of each rank."""
        names = self.names("worker")
        return {name: names.mask([name]) for name in names.unique_names}

    def path_labels(self) -> PathLabels:
        """Return the labels of the events; a worker is a stage of a rank."""
        kinds = np.where(self.is_compute, COMPUTE, TRANSFER)
        meetings = self.table.graph.size - 2 * len(kinds)
        workers = self.names("worker")
        names = np.array(workers.unique_names)[workers.codes]
        return PathLabels(names, kinds, kinds, np.zeros(meetings, dtype=np.int64))

    def path_events(self, variant: Times | None = None) -> list[PathEvents]:
        """Return the events of each step, without the delays between operations and their causes."""
        durations = self.recorded if variant is None else variant
        moments = self._moments([durations])[0]
        size = len(self.table.operation)
        begins = moments[: 2 * size : 2].min(axis=0)
        values = np.concatenate([durations, np.zeros_like(durations), np.zeros((1, durations.shape[1]))])
        ends, exact = 2 * np.arange(size) + 1, np.zeros(len(moments))
        return [
            PathEvents(
                moments[:, step],
                values[:, step],
                exact,
                [StepEvents(np.full(len(moments), begins[step]), ends)],
            )
            for step in range(moments.shape[1])
        ]

    def _replay(self, variants: Sequence[Times]) -> list[Times]:
        return [self.step_lengths(moments) for moments in self._moments(variants)]

    def step_lengths(self, moments: Times) -> Times:
        """Return the length of each step, s, from when its operations start and end."""
        operations = moments[: 2 * len(self.table.operation)]
        lengths: Times = operations[1::2].max(axis=0) - operations[::2].min(axis=0)
        return lengths

    def _moments(self, variants: Sequence[Times]) -> list[Times]:
        width, delays = len(self.steps), np.zeros_like(self.recorded)
        nothing = np.zeros((1, width * len(variants)))
        values = np.concatenate([np.concatenate(variants, axis=1), np.tile(delays, len(variants)), nothing])
        moments = self.table.graph.replay(values)
        return np.split(moments, range(width, moments.shape[1], width), axis=1)
