"""Stalls of hosts: the run without their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.intervals import union_lengths
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent
from ccl_bench.whatif.run_graph import GAP, OWN, TAIL, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity
    from ccl_bench.whatif.event_graph import Times

_ALL = 0.75
"""Share of the ranks from which a cause counts as one of all ranks: those without it are exceptions."""


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
    operations = gains.operations
    on_host = operations.select(
        "row",
        "trace",
        "start_ns",
        "end_ns",
        waits=(pl.col("at_end") & pl.col("awaited").is_not_null()).fill_null(value=False),
    ).filter(pl.Series(gains.on_host))
    for (trace,), part in on_host.partition_by("trace", as_dict=True).items():
        trace_intervals = intervals.filter(pl.col("trace") == trace)
        if trace_intervals.is_empty():
            continue
        rows = part["row"].to_numpy() * VALUES
        gap = np.maximum(values[rows + GAP], values[rows + TAIL]).clip(min=0)
        waits = part["waits"].to_numpy()
        gap[waits] = 0
        before = part.select(
            start_ns=pl.col("start_ns") - pl.Series(gap).round().cast(pl.Int64), end_ns="start_ns"
        )
        inside = union_lengths(trace_intervals, before).to_numpy()
        for place in (GAP, TAIL):
            reduced = (values[rows + place] > 0) & ~waits
            values[rows[reduced] + place] = np.maximum(0, values[rows[reduced] + place] - inside[reduced])
        within = union_lengths(trace_intervals, part).to_numpy()
        values[rows[~waits] + OWN] = np.maximum(0, values[rows[~waits] + OWN] - within[~waits])
    return values
