"""Replays of a run: which operations scenarios name, and how long steps take with other times."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_polars import pl
from ccl_bench.whatif.ideal import IDEALISATION, comparable_values, ideal_values
from ccl_bench.whatif.replays import Replays
from ccl_bench.whatif.run_graph import GAP, OWN, VALUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccl_bench.whatif.replays import Mask, Times
    from ccl_bench.whatif.run_graph import RunGraph

HOST, COMPUTE, COPIES = "host", "compute", "copies"
"""What an operation is that does not communicate; communication is named by its collective."""

_WHERE = {"memory": COPIES, "fused": COMPUTE, "operator": COMPUTE, "compute": COMPUTE}


class RunReplays(Replays):
    """Replays of the graph of a run."""

    idealisation = IDEALISATION
    kinds = ("rank", "stage", "kernel", "comm", "dimension", "operation")
    answered = ("rank", "stage", "dimension", "operation")

    def __init__(self, graph: RunGraph) -> None:
        self.graph = graph
        self.name, self.steps, self.findings = graph.name, graph.steps, graph.findings
        self.recorded_s = graph.step_lengths(graph.events.recorded[:, None])[:, 0]

    @property
    def recorded(self) -> Times:
        """The variant in which everything takes what it took, less what no operation explains."""
        return self.graph.values

    @cached_property
    def _comparable(self) -> pl.DataFrame:
        return comparable_values(self.graph)

    @cached_property
    def ideal(self) -> Times:
        """The variant in which everything takes its ideal time."""
        return self._changed(ideal_values(self._comparable))

    @cached_property
    def is_compute(self) -> Mask:
        """Whether each operation is on the host or computes."""
        found: Mask = self.labels("comm")[0] == ""
        return found

    def labels(self, kind: str) -> list[NDArray[np.str_]]:
        """Return by what names of a kind each operation is known."""
        return [self._label(kind)]

    def _label(self, kind: str) -> NDArray[np.str_]:
        away = pl.col("place") != "host"
        comm = pl.when(away & (pl.col("kind") == "communication")).then(
            pl.col("collective").fill_null("other")
        )
        name = pl.col("name").cast(pl.String)
        what = pl.col("kind").replace_strict(_WHERE, default=HOST)
        columns = {
            "rank": pl.col("rank").cast(pl.String),
            "stage": pl.col("stage").cast(pl.String),
            "kernel": pl.when(away & comm.is_null()).then(name),
            "comm": comm,
            "dimension": pl.when(comm.is_not_null()).then("dimension"),
            "operation": pl.coalesce(comm, what),
        }
        found: NDArray[np.str_] = (
            self.graph.operations.select(columns[kind].fill_null("")).to_series().to_numpy().astype(np.str_)
        )
        return found

    def matches(self, kind: str, name: str) -> Mask:
        """Return which operations are meant: kernels by a part of their name or a pattern, others by name."""
        labels = self._label(kind)
        if kind != "kernel":
            equal: Mask = labels == name
            return equal
        known = [each for each in np.unique(labels) if each]
        asked = name.lower()
        is_pattern = any(sign in name for sign in "*?[")
        meant = [
            each
            for each in known
            if (fnmatchcase(each.lower(), asked) if is_pattern else asked in each.lower())
        ]
        found: Mask = np.isin(labels, meant)
        return found

    def _changed(self, ideal: pl.DataFrame) -> Times:
        values = self.graph.values.copy()
        values[ideal["value"].to_numpy()] = ideal["ideal"].to_numpy()
        return values

    def without(self, mask: Mask) -> Times:
        """Return the variant in which some operations take what the same ones take on other ranks."""
        return self._changed(ideal_values(self._comparable, mask))

    def scaled(self, mask: Mask, factor: float) -> Times:
        """Return the variant in which some operations, and the host's time before them, are scaled."""
        values = self.graph.values.copy()
        rows = np.flatnonzero(mask)
        values[rows * VALUES + OWN] *= factor
        on_host = rows[(self.graph.operations["place"] == "host").to_numpy()[rows]]
        values[on_host * VALUES + GAP] *= factor
        return values

    def ideal_but(self, mask: Mask) -> Times:
        """Return the variant in which all but some operations take their ideal time."""
        return np.where(np.append(np.repeat(mask, VALUES), True), self.graph.values, self.ideal)

    @property
    def workers(self) -> dict[str, Mask]:
        """The operations of each rank, by rank and stage."""
        rank, stage = self._label("rank"), self._label("stage")
        names = np.char.add(np.char.add(rank, "/"), stage)
        return {name: names == name for name in np.unique(names).tolist()}

    def _replay(self, variants: Sequence[Times]) -> list[Times]:
        lengths = self.graph.step_lengths(self.graph.events.replay(np.stack(variants, axis=1)))
        return list(lengths.T)
