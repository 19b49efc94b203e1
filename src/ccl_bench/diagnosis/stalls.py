"""Stalls of hosts: the run without their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent
from ccl_bench.whatif.run_graph import GAP, OWN, TAIL, VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity
    from ccl_bench.whatif.event_graph import Numbers, Times

_ALL = 0.75
"""Share of the ranks from which a cause counts as one of all ranks: those without it are exceptions."""

_LONG_AGO = -(1 << 62)
"""When nothing had begun yet, ns."""


def without_stalls(
    gains: Gains,
    stalls: pl.DataFrame,
    *,
    kinds: Sequence[str],
    what: str,
    remedy: str,
) -> Iterator[Opportunity]:
    """Yield the opportunity of removing stalls of some kinds from hosts, on the clock of all ranks."""
    chosen_stalls = stalls.filter(pl.col("kind").is_in(kinds))
    if chosen_stalls.is_empty():
        raise Silent(f"the traces show no {' or '.join(kinds)}")
    variant = without_intervals(gains, chosen_stalls)
    (gain,) = gains.of(variant)
    if not gain.is_certain(gains.steps_changed(variant)):
        return
    longest = chosen_stalls.group_by("name").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    name = longest.sort("ns", "name", descending=[True, False])["name"][0]
    saved = pl.Series(gains.saved(variant).sum(axis=1))
    by_rank = gains.operations.select("rank", saved=saved).drop_nulls("rank").group_by("rank")
    sums = by_rank.agg(pl.col("saved").sum()).sort("rank")
    ranks = sums.filter(pl.col("saved") > pl.col("saved").max() / 2)["rank"].to_list()
    yield gains.opportunity(
        gain,
        variant,
        title=f"{what}: {name}",
        remedy=remedy,
        change="hosts spend no time in it",
        ranks=ranks if len(ranks) < _ALL * len(sums) else [],
    )


def without_intervals(gains: Gains, intervals: pl.DataFrame) -> Times:
    """Return the variant in which hosts take no time in intervals of `trace`, on the clock of all ranks."""
    values = gains.graph.values.copy()
    for trace, host in gains.host_rows.items():
        trace_intervals = intervals.filter(pl.col("trace") == trace)
        if trace_intervals.is_empty():
            continue
        covered = _covered_until(trace_intervals)
        goes_on = ~host.waits
        rows, start_ns = host.row[goes_on] * VALUES, host.start_ns[goes_on]
        gap = np.maximum(values[rows + GAP], values[rows + TAIL]).clip(min=0)
        before_ns = start_ns - np.rint(gap).astype(np.int64)
        upto_start = covered(start_ns)
        inside = upto_start - covered(before_ns)
        for place in (GAP, TAIL):
            some = values[rows + place] > 0
            values[rows[some] + place] = np.maximum(0, values[rows[some] + place] - inside[some])
        within = covered(host.end_ns[goes_on]) - upto_start
        values[rows + OWN] = np.maximum(0, values[rows + OWN] - within)
    return values


def _covered_until(intervals: pl.DataFrame) -> Callable[[Numbers], Numbers]:
    """Return a function of moments, ns: how much of the time before each the intervals cover together."""
    starts, ends = (each.to_numpy() for each in merge_intervals(intervals))
    length_upto = np.append(0, np.cumsum(ends - starts))
    last_end = np.append(_LONG_AGO, ends)

    def covered(moments: Numbers) -> Numbers:
        begun = np.searchsorted(starts, moments, side="right")
        upto: Numbers = length_upto[begun] - (last_end[begun] - moments).clip(min=0)
        return upto

    return covered
