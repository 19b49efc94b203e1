"""Replays of a run: selection of operations for scenarios, and lengths of steps with other times.

The ideal time of an operation is that of the same operation on other ranks.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.whatif.comparable import ComparableValues
from ccl_bench.whatif.event_graph import PathEvents, StepEvents
from ccl_bench.whatif.replays import COMPUTE, TRANSFER, Names, PathLabels, Replays
from ccl_bench.whatif.run_graph import GAP, OWN, TAIL, VALUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.whatif.event_graph import Mask, Numbers, Times
    from ccl_bench.whatif.run_graph import RunGraph


IDEALISATION = (
    "the median of the same operation of all ranks at the same place in the step, unless the rank's "
    "host or device is faster on the whole; for excluded operations the median of the others, first of the "
    "same pipeline stage"
)

HOST, COPIES = "host", "copies"
"""Names of operations that do not communicate; communication is named by its collective."""

_WHERE = {"memory": COPIES, "fused": COMPUTE, "operator": COMPUTE, "compute": COMPUTE}


class RunReplays(Replays):
    """Replays of the graph of a run."""

    idealisation = IDEALISATION
    kinds = ("rank", "stage", "kernel", "comm", "dimension", "operation")
    kinds_of_communication = "comm"
    answered = ("rank", "stage", "dimension", "operation")

    def __init__(self, graph: RunGraph) -> None:
        self.run = graph
        self.graph, self.unit_s = graph.events, 1e-9
        self.name, self.steps, self.findings = graph.name, graph.steps, graph.findings
        self.recorded_s = graph.step_lengths(graph.events.recorded)
        ranks = graph.operations["trace"].n_unique()
        if ranks > 1 and self.recorded_s.sum():
            is_unmet = pl.Series(graph.meets < 0) & (graph.operations["kind"] == "communication")
            # The range of a send ends when the program asks for it, not when the message has left.
            unmet = graph.operations.filter(
                is_unmet, pl.col("step").is_not_null(), ~pl.col("collective").is_in(["send"])
            )
            took = unmet.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() / ranks
            self.unmet = float(took * self.unit_s / self.recorded_s.sum())

    @property
    def recorded(self) -> Times:
        """The variant with the recorded times, without time that no operation explains."""
        return self.run.values

    @cached_property
    def comparable(self) -> ComparableValues:
        """The times that compare between ranks."""
        return ComparableValues(self.run)

    @cached_property
    def ideal(self) -> Times:
        """The variant with all ideal times."""
        return self._changed(*self.comparable.ideal())

    @cached_property
    def is_compute(self) -> Mask:
        """Whether each operation is on the host or computes."""
        return self.names("comm").mask([""])

    def names(self, kind: str) -> Names:
        """Return the names of a kind."""
        away = pl.col("place") != "host"
        communicates = away & (pl.col("kind") == "communication")
        collective = pl.when(communicates).then(pl.col("collective").cast(pl.String).fill_null("other"))
        what = pl.col("kind").cast(pl.String).replace_strict(_WHERE, default=HOST)
        columns = {
            "rank": pl.col("rank").cast(pl.String),
            "stage": pl.col("stage").cast(pl.String),
            "kernel": pl.when(away & ~communicates).then(pl.col("name").cast(pl.String)),
            "comm": collective,
            "dimension": pl.when(communicates).then("dimension"),
            "operation": pl.coalesce(collective, what),
        }
        names = self.run.operations.select(columns[kind].fill_null("")).to_series()
        unique_names = names.unique().sort()
        return Names(
            unique_names.to_list(), names.cast(pl.Enum(unique_names)).to_physical().cast(pl.Int64).to_numpy()
        )

    def matches(self, kind: str, name: str) -> Mask:
        """Return a mask of the matching operations: kernels by a part of the name, others by name."""
        names = self.names(kind)
        if kind != "kernel":
            return names.mask([name])
        query, is_pattern = name.lower(), any(sign in name for sign in "*?[")
        return names.mask(
            each
            for each in filter(None, names.unique_names)
            if (fnmatchcase(each.lower(), query) if is_pattern else query in each.lower())
        )

    def _changed(self, changed: Numbers, ideal: Times) -> Times:
        values = self.run.values.copy()
        values[changed] = ideal
        gaps = self.run.held_twice(changed)
        values[gaps + TAIL] = values[gaps]
        return values

    def without(self, mask: Mask) -> Times:
        """Return the variant in which some operations take the time of the same ones on other ranks.

        Raises UsageError if that is all of them.
        """
        if mask.all():
            fix = "exclude fewer operations, or record more ranks; --scale needs no comparison"
            raise UsageError("no other rank shows its ideal time", fix=fix)
        return self._changed(*self.comparable.ideal(mask))

    def scaled(self, mask: Mask, factor: float) -> Times:
        """Return the variant in which some operations, and the host's time before them, are scaled."""
        values = self.run.values.copy()
        rows = np.flatnonzero(mask)
        values[rows * VALUES + OWN] *= factor
        on_host = rows[(self.run.operations["place"] == "host").to_numpy()[rows]]
        values[on_host * VALUES + GAP] *= factor
        values[on_host * VALUES + TAIL] *= factor
        return values

    def ideal_but(self, mask: Mask) -> Times:
        """Return the variant in which all but some operations take their ideal time."""
        return np.where(np.append(np.repeat(mask, VALUES), True), self.run.values, self.ideal)

    def transfer_s(self, mask: Mask) -> Times:
        """Return the time in which some operations move data in each step, on the rank with the most, s."""
        operations = self.run.operations.select("trace", "step", took=pl.Series(self.recorded[OWN:-1:VALUES]))
        moved = operations.filter(pl.Series(mask)).group_by("trace", "step").agg(pl.col("took").sum())
        most = dict(moved.group_by("step").agg(pl.col("took").max()).iter_rows())
        return np.array([most.get(step, 0.0) for step in self.steps]) * self.unit_s

    def on_network(self, bandwidth: float, latency_s: float) -> Times:
        """Return the variant in which matched collectives take latency and size over bus bandwidth.

        `t = alpha + size · factor / B`, with the factor of nccl-tests for the collective and its group.
        """
        sized_calls = (
            self.run.operations.select("row", pl.col("collective").cast(pl.String), "size_bytes", "size")
            .filter(pl.Series(self.run.meets >= 0))
            .drop_nulls()
        )
        if sized_calls.is_empty():
            fix = "record the arguments of calls: NCCL with torch 2.5 or later, or also Execution Traces"
            raise UsageError("no communication call has a recorded size and group", fix=fix)
        kinds = sized_calls.select("collective", "size").unique().rows()
        factors = [(*kind, known_bus_factor(*kind)) for kind in kinds]
        schema = {"collective": pl.String, "size": pl.Int64, "factor": pl.Float64}
        rated = sized_calls.join(
            pl.DataFrame(factors, schema, orient="row"), on=["collective", "size"]
        ).drop_nulls()
        moved = rated["size_bytes"] * rated["factor"] / bandwidth
        values = self.recorded.copy()
        values[rated["row"].to_numpy() * VALUES + OWN] = (latency_s + moved.to_numpy()) / self.unit_s
        return values

    @property
    def workers(self) -> dict[str, Mask]:
        """The operations of each rank, by rank and stage."""
        ranks, stages = self.names("rank"), self.names("stage")
        pairs = np.unique(np.stack([ranks.codes, stages.codes]), axis=1).T.tolist()
        return {
            f"{ranks.unique_names[rank]}/{stages.unique_names[stage]}": (ranks.codes == rank)
            & (stages.codes == stage)
            for rank, stage in pairs
            if ranks.unique_names[rank]
        }

    def path_labels(self) -> PathLabels:
        """Return the owners of events; a worker is a rank, or a trace of unknown rank."""
        operations = self.run.operations
        away = (operations["place"] != "host").to_numpy()
        names = {
            "communication": TRANSFER,
            "memory": COPIES,
            "operator": COMPUTE,
            "fused": COMPUTE,
            COMPUTE: COMPUTE,
        }
        ends = (
            operations["kind"].cast(pl.String).replace_strict(names, default=HOST).to_numpy().astype(np.str_)
        )
        workers = operations.select(
            pl.coalesce(pl.col("rank").cast(pl.String), pl.format("trace {}", "trace"))
        ).to_series()
        member = np.zeros(self.graph.size - 2 * len(ends), dtype=np.int64)
        meets = self.run.meets >= 0
        member[self.run.meets[meets]] = np.flatnonzero(meets)
        starts = np.full(len(away), HOST)
        return PathLabels(workers.to_numpy().astype(np.str_), starts, ends, member)

    def path_events(self, variant: Times | None = None) -> list[PathEvents]:
        """Return the events of all steps as recorded, or as replayed in a variant."""
        moments = self.graph.recorded if variant is None else self.graph.replay(variant[:, None])[:, 0]
        values = self.recorded if variant is None else variant
        steps = [
            StepEvents(self.run.step_begins(step, moments), self.run.step_ends(step)) for step in self.steps
        ]
        return [PathEvents(moments, values, self.run.clock_error(), steps)]

    def _replay(self, variants: Sequence[Times]) -> list[Times]:
        moments = self.graph.replay(np.stack(variants).T if len(variants) > 1 else variants[0][:, None])
        return [self.run.step_lengths(column) for column in moments.T]
