"""Hosts without their stalls and pauses: the variants on which causes of the host are judged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.execution.idle import PAUSE_NS, PAUSES
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent
from ccl_bench.diagnosis.communication import SlowRanks, slow_ranks
from ccl_bench.diagnosis.stalls import without_intervals
from ccl_bench.whatif.comparable import EVERY_STEP
from ccl_bench.whatif.run_graph import GAP, TAIL, VALUES

if TYPE_CHECKING:
    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.whatif.event_graph import Times

IRREGULAR = 0.05
"""Share of the mean step by which a pause must exceed the usual time at its place: below it lies noise."""

_USUAL = 0.25
"""Quantile over steps and ranks that is the usual time: two hosts that pause by turns do so in half."""

_ALWAYS = 0.75
"""Share of the steps, or of the time of all pauses, from which a rank that pauses is late: nearly all."""

MOSTLY = 0.5
"""Share of the time from which one range names a cause."""


@dataclass(frozen=True)
class Hosts:
    """What the hosts of a run do apart from launching work."""

    gains: Gains
    stalls: pl.DataFrame
    """Stalls of known kinds."""

    @cached_property
    def late(self) -> SlowRanks | None:
        """The ranks whose hosts are late in most steps, apart from irregular pauses; None without any."""
        base = self.gains.graph.values - self.irregular
        try:
            return slow_ranks(self.gains, self.gains.on_host, base)
        except Silent:
            return None

    @cached_property
    def without_stalls(self) -> Times:
        """The variant without stalls of known kinds, in which no host is later than others."""
        variant = without_intervals(self.gains, self.stalls)
        return np.minimum(variant, self.late.variant) if self.late else variant

    @property
    def pauses(self) -> pl.DataFrame:
        """The pauses of hosts without a known kind; none without a device."""
        return self.gains.activity.filter(pl.col("cause").is_in(PAUSES))

    @cached_property
    def irregular(self) -> Times:
        """By how much operations of hosts, and the time before them, exceed their usual time, as values, ns.

        The usual time is that of the same operation at the same place of the steps of all ranks. Ranks that
        pause most while others do not are late, and their time is not irregular. Without a device an operator
        that takes longer computes: only the time before operations is a pause.
        """
        gains = self.gains
        waits = pl.col("awaited").is_not_null() & pl.col("at_end")
        counts = gains.where((pl.col("place") == "host") & pl.col("step").is_not_null() & ~waits)
        values = gains.replays.comparable.table
        of_host = values.filter(pl.Series(counts[values["row"].to_numpy()]))
        if not gains.has_device:
            of_host = of_host.filter(pl.col("value") % VALUES == GAP)
        usual = pl.col("ns").quantile(_USUAL, "lower").over(EVERY_STEP)
        excess = of_host.select("value", "row", excess=pl.col("ns") - usual)
        least = max(PAUSE_NS, IRREGULAR * 1e9 * float(gains.step_s.mean()))
        places_of_rows = gains.operations.select("row", "rank", "step")
        long = excess.filter(pl.col("excess") > least).join(places_of_rows, on="row", maintain_order="left")
        # Ranks that pause in most steps, or for most of the time, are late, unless all do.
        by_rank = long.group_by("rank").agg(pl.col("step").n_unique(), pl.col("excess").sum())
        in_most_steps = pl.col("step") >= _ALWAYS * len(gains.steps)
        alone = pl.col("excess") >= _ALWAYS * pl.col("excess").sum()
        late = by_rank.filter(in_most_steps | alone)["rank"]
        if len(late) < gains.operations["rank"].n_unique():
            long = long.filter(~pl.col("rank").is_in(late.implode(), nulls_equal=True))
        excess_ns = np.zeros_like(gains.graph.values)
        places = long["value"].to_numpy()
        excess_ns[places] = long["excess"].to_numpy()
        gaps = gains.graph.held_twice(places)
        excess_ns[gaps + TAIL] = excess_ns[gaps]
        return excess_ns

    @cached_property
    def without_irregular(self) -> Times:
        """The variant without stalls, late ranks and irregular pauses."""
        return np.minimum(self.without_stalls, self.gains.graph.values - self.irregular)

    @cached_property
    def steady(self) -> Times:
        """The variant without stalls, late ranks and any pauses."""
        return np.minimum(self.without_irregular, without_intervals(self.gains, self.pauses))

    def place_of(self, variant: Times) -> str | None:
        """Return in which range, operator or call a variant saves most; None if none has half of it.

        The text is empty if that time has no name.
        """
        saved = self.gains.saved(variant).clip(min=0)
        rows = np.flatnonzero(saved.sum(axis=1) > 0)
        sums: dict[str, float] = {}
        for row, name in zip(rows.tolist(), self.gains.host_places(rows, saved), strict=True):
            sums[name] = sums.get(name, 0.0) + float(saved[row].sum())
        name = max(sums, key=lambda each: sums[each], default="")
        return name if sums.get(name, 0.0) >= MOSTLY * sum(sums.values()) else None
