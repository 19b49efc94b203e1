"""Replays of a table of operations."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import UsageError
from ccl_bench.whatif.critical_path import PathEvents, StepEvents
from ccl_bench.whatif.replays import Names, PathLabels, Replays

COMPUTE, TRANSFER = "compute", "transfer"
"""Kinds of operations on the critical path."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.whatif.operation_table import OperationTable
    from ccl_bench.whatif.replays import Mask, Times


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
        found = np.empty_like(self.table.duration)
        for name in np.unique(self.table.operation):
            mine = self.table.operation == name
            typical = np.mean if self.is_compute[mine][0] else np.median
            found[mine] = typical(self.table.duration[mine])
        return found

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
        known, codes = np.unique(columns[kind], return_inverse=True)
        return Names(known.tolist(), codes)

    def matches(self, kind: str, name: str) -> Mask:
        """Return which operations have a name; sending and receiving have their own besides the shown one."""
        found = self.names(kind).mask([name])
        return found | (self.table.operation == name) if kind == "operation" else found

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
        """Return how long some operations move data in each step, on the worker where that is longest, s."""
        moved = np.where(mask[:, None], self.recorded, 0)
        found: Times = np.max([moved[mine].sum(axis=0) for mine in self.workers.values()], axis=0)
        return found

    def on_network(self, bandwidth: float, latency_s: float) -> Times:
        """Refuse: a table of operations states no sizes."""
        del bandwidth, latency_s
        raise UsageError("a table of operations states no sizes of messages", fix="name a run with traces")

    @property
    def workers(self) -> dict[str, Mask]:
        """The operations of each stage of each rank."""
        names = self.names("worker")
        return {name: names.mask([name]) for name in names.known}

    def path_labels(self) -> PathLabels:
        """Return what events belong to; a worker is a stage of a rank."""
        kinds = np.where(self.is_compute, COMPUTE, TRANSFER)
        meetings = self.table.graph.size - 2 * len(kinds)
        workers = self.names("worker")
        names = np.array(workers.known)[workers.codes]
        return PathLabels(names, kinds, kinds, np.zeros(meetings, dtype=np.int64))

    def path_events(self, variant: Times | None = None) -> list[PathEvents]:
        """Return the events of each step, without the time between operations and what they wait for."""
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
        found: Times = operations[1::2].max(axis=0) - operations[::2].min(axis=0)
        return found

    def _moments(self, variants: Sequence[Times]) -> list[Times]:
        width, delays = len(self.steps), np.zeros_like(self.recorded)
        nothing = np.zeros((1, width * len(variants)))
        values = np.concatenate([np.concatenate(variants, axis=1), np.tile(delays, len(variants)), nothing])
        moments = self.table.graph.replay(values)
        return np.split(moments, range(width, moments.shape[1], width), axis=1)
