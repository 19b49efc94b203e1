"""Gains of changes to a run: the time that the replay saves in each step, with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.statistics import student_quantile
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis.host_places import places_by_activity, places_by_range
from ccl_bench.result.diagnosis import Evidence, Opportunity
from ccl_bench.whatif.answer import replay_recorded
from ccl_bench.whatif.run_graph import GAP, OWN, TAIL, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.whatif.event_graph import Mask, Numbers, Times
    from ccl_bench.whatif.run_replays import RunReplays

WORTH = 0.01
"""Share of the step that a change must gain, beyond noise, to be reported: repeated runs differ as much."""

WORTH_ALONE = 0.03
"""The same for a single step, whose noise is unknown."""

SEEN = 0.02
"""Share of a step that a change must gain for the cause to be detected in it: single steps vary more."""

_OFTEN, _RARELY = 0.2, 0.1
"""Smallest share of steps with an intermittent cause, and largest share in which its removal costs time.

Noise gains in as many steps as it costs in; a rarer cause is an outlier.
"""

_FEWEST = 3
"""Smallest number of steps with such a cause: noise hits two of many."""

_INTERVAL = 0.975
_SHOWN = 3
_BOUNDS = "+-"
"""How the names of the bounds of ranges begin."""


@dataclass(frozen=True)
class Gain:
    """The gain of one change."""

    by_step: Times
    """In each step, s."""
    step_s: Times
    """Length of each step as replayed, s."""
    replay_error_s: float
    """Mean error of the replayed steps, s."""

    @property
    def mean_s(self) -> float:
        """Saved in the mean step, s."""
        return float(self.by_step.mean())

    @property
    def error_s(self) -> float | None:
        """Half of the interval that holds the mean in 95 of 100 runs; None for one step.

        For an intermittent cause it is that of the steps with the cause.
        """
        count = len(self.by_step)
        if count == 1:
            return None
        which = self.seen if self.comes_and_goes else np.ones_like(self.seen)
        share = which.sum() / count
        spread = float(self.by_step[which].std(ddof=1)) / math.sqrt(which.sum())
        return (
            float(share * student_quantile(_INTERVAL, float(which.sum()) - 1) * spread) + self.replay_error_s
        )

    @property
    def seen(self) -> Mask:
        """Steps in which it saves more than their noise."""
        seen: Mask = self.by_step > SEEN * self.step_s
        return seen

    @property
    def comes_and_goes(self) -> bool:
        """Whether it saves time in some steps without costing time in others, which noise would."""
        seen, lost = self.seen.sum(), (self.by_step < -SEEN * self.step_s).sum()
        often = _FEWEST <= seen < len(self.seen) and seen >= _OFTEN * len(self.seen)
        return bool(often and lost <= _RARELY * seen)

    @property
    def share(self) -> float:
        """Saved in the mean step, as a share of it."""
        return self.mean_s / float(self.step_s.mean())

    @property
    def is_sure(self) -> bool:
        """Whether it exceeds the noise of the steps and the error of the replay."""
        error, worth = self.error_s, WORTH
        if error is None:
            error, worth = self.replay_error_s, WORTH_ALONE
        return self.mean_s - error > worth * float(self.step_s.mean())

    def is_certain(self, repeats: int) -> bool:
        """Whether removing some time gains enough, given the number of steps that have some of it.

        Unlike the times of other ranks, time that is removed has no noise: a replay without it only gets
        shorter. It counts as in a single step, if several steps have it and none loses.
        """
        enough = self.mean_s - self.replay_error_s > WORTH_ALONE * float(self.step_s.mean())
        several = repeats >= min(2, len(self.by_step))
        return self.is_sure or bool(enough and several and (self.by_step > -SEEN * self.step_s).all())

    def beyond(self, other: Times) -> Gain:
        """Return the gain minus a given saving in each step."""
        return Gain(self.by_step - other, self.step_s, self.replay_error_s)


@dataclass(frozen=True, slots=True)
class HostRows:
    """Operations on the hosts of one trace."""

    row: Numbers
    start_ns: Numbers
    end_ns: Numbers
    waits: Mask
    """Whether each waits for an operation before its end."""


class Gains:
    """Replays a run with changes and compares the lengths of its steps.

    `activity` is what the hosts did, on the clock of all ranks. Raises NotMeasurable where the replay
    explains too little of a step.
    """

    def __init__(self, replays: RunReplays, activity: pl.DataFrame) -> None:
        self.replays = replays
        self.activity = activity
        self.graph = replays.run
        self.steps = replays.steps
        self.step_s, self.unexplained = replay_recorded(replays)
        if not math.isfinite(self.unexplained):
            raise NotMeasurable("operations without a start event cannot be replayed", where=replays.name)
        self.replay_error = float(self.step_s.mean() / replays.recorded_s.mean() - 1)

    @cached_property
    def operations(self) -> pl.DataFrame:
        """The operations of the graph, one row each."""
        return self.graph.operations

    @cached_property
    def _activity_by_start(self) -> pl.DataFrame:
        return self.activity.select("trace", "name", "start_ns").sort("start_ns")

    @cached_property
    def on_host(self) -> Mask:
        """Whether each operation runs on a thread of the host."""
        return self.where(pl.col("place") == "host")

    @cached_property
    def computes(self) -> Mask:
        """Whether each operation is a kernel that computes."""
        return self.where((pl.col("place") == "device") & pl.col("kind").is_in(["compute", "fused"]))

    @cached_property
    def has_device(self) -> bool:
        """Whether any operation ran on a device."""
        return bool((self.operations["place"] == "device").any())

    @cached_property
    def host_rows(self) -> dict[int, HostRows]:
        """The operations of the hosts of each trace."""
        on_host = self.operations.select(
            *("trace", "row", "start_ns", "end_ns"),
            waits=(pl.col("at_end") & pl.col("awaited").is_not_null()).fill_null(value=False),
        ).filter(pl.Series(self.on_host))
        parts = on_host.partition_by("trace", as_dict=True, include_key=False)
        return {trace: HostRows(*(each.to_numpy() for each in part)) for (trace,), part in parts.items()}

    def where(self, condition: pl.Expr) -> Mask:
        """Return a mask of the operations that fulfil a condition."""
        mask: Mask = self.operations.select(condition.fill_null(value=False)).to_series().to_numpy()
        return mask

    def of(self, *variants: Times) -> list[Gain]:
        """Return the gain of each of several variants."""
        return self.of_each(variants)

    def of_each(self, variants: Iterable[Times]) -> list[Gain]:
        """Return the same; a variant is let go when it is replayed."""
        error_s = self.unexplained * float(self.step_s.mean())
        return [Gain(self.step_s - took, self.step_s, error_s) for took in self.replays.steps_s(variants)]

    def sure(
        self,
        variant: Times,
        *,
        title: str,
        remedy: str,
        change: str,
        ranks: Sequence[int] = (),
        worth: float = 0.0,
    ) -> Iterator[Opportunity]:
        """Yield the opportunity of a variant if its gain is sure, and at least `worth` of the step."""
        (gain,) = self.of(variant)
        if gain.is_sure and gain.share >= worth:
            yield self.opportunity(gain, variant, title=title, remedy=remedy, change=change, ranks=ranks)

    def opportunity(
        self, gain: Gain, variant: Times, *, title: str, remedy: str, change: str, ranks: Sequence[int] = ()
    ) -> Opportunity:
        """Return an opportunity with the operations that the variant shortens most as evidence."""
        seen = np.flatnonzero(gain.seen).tolist()
        best = sorted(seen, key=lambda place: -gain.by_step[place])
        return Opportunity(
            "",
            "",
            title,
            remedy,
            sorted(ranks),
            [self.steps[place] for place in seen],
            gain.share,
            gain.mean_s,
            gain.error_s,
            change,
            [each for place in best[:_SHOWN] for each in self.shortened(variant, self.steps[place])],
        )

    def without_steps(self, which: Mask, *, title: str, remedy: str) -> Opportunity:
        """Return the reduction of the mean recorded step without some steps; nothing is replayed."""
        lengths = self.replays.recorded_s
        gain_s = float(lengths.mean() - lengths[~which].mean())
        out = [self.steps[place] for place in np.flatnonzero(which).tolist()]
        share = gain_s / float(lengths.mean())
        change = "mean over the other steps"
        return Opportunity("", "", title, remedy, [], out, share, gain_s, None, change)

    def shortened(self, variant: Times, step: int) -> list[Evidence]:
        """Return the operation of a step that a variant shortens most, or none."""
        saved = self.saved(variant).sum(axis=1)
        in_step = self.where(pl.col("step") == step)
        row = int(np.where(in_step, saved, -1.0).argmax()) if in_step.any() else -1
        if row < 0 or saved[row] <= 0:
            return []
        each = self.operations.row(row, named=True)
        name = each["name"] or each["kind"]
        by_part = self.saved(variant)[row]
        if each["place"] == "host" and max(by_part[GAP], by_part[TAIL]) > by_part[OWN]:
            gap = round(max(self.graph.values[VALUES * row + GAP], self.graph.values[VALUES * row + TAIL]))
            (place,) = self.host_places(np.array([row]), self.saved(variant))
            where = f"{place}, before {name.lstrip(_BOUNDS)}" if place else f"before {name.lstrip(_BOUNDS)}"
            return [Evidence(each["rank"], step, where, each["start_ns"] - gap, each["start_ns"])]
        return [Evidence(each["rank"], step, name, each["start_ns"], each["end_ns"])]

    def host_places(self, rows: Numbers, saved: Times) -> list[str]:
        """Return what the host did in the time that each of some operations saves; empty without a name."""
        operations = self.operations[rows]
        gaps = saved[rows][:, [GAP, TAIL]].max(axis=1)
        before_ns = np.where(gaps > saved[rows][:, OWN], gaps, 0).round().astype(np.int64)
        if self.activity.is_empty():
            return places_by_range(self.graph, operations, before_ns)
        return places_by_activity(operations, before_ns, self._activity_by_start)

    def steps_changed(self, variant: Times) -> int:
        """Return the number of steps whose operations a variant shortens by more than their noise."""
        saved = self.operations.select("step", saved=pl.Series(self.saved(variant).sum(axis=1)))
        by_step = saved.drop_nulls("step").group_by("step").agg(pl.col("saved").sum())
        return by_step.filter(pl.col("saved") > SEEN * float(self.step_s.mean()) / self.replays.unit_s).height

    def saved(self, variant: Times) -> Times:
        """Return by how much a variant shortens each part of each operation, `[operation, part]`, ns."""
        saved: Times = (self.graph.values - variant)[:-1].reshape(-1, VALUES)
        return saved
