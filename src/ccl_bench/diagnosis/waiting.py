"""Waiting of ranks for each other: who waits, who is late, and what the step gains without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis.communication import lateness
from ccl_bench.result.diagnosis import Waiting

if TYPE_CHECKING:
    from ccl_bench.diagnosis.gains import Gains


def find_waiting(gains: Gains) -> Waiting | None:
    """Return who is latest and who waits longest; None if no rank waits for another."""
    late = [rank for rank, ns in lateness(gains).items() if ns > 0]
    if not late or gains.operations["rank"].n_unique() < 2:
        return None
    of_latest = gains.replays.without(gains.where(pl.col("rank") == late[0]))
    latest, every = gains.of(of_latest, gains.replays.ideal)
    gain_s = max(0.0, latest.mean_s)
    calls = gains.operations.select("rank", "start_ns", meeting=pl.Series(gains.graph.meets))
    waited = pl.col("start_ns").max().over("meeting") - pl.col("start_ns")
    by_rank = calls.filter(pl.col("meeting") >= 0).with_columns(waited=waited).group_by("rank")
    sums = by_rank.agg(pl.col("waited").sum()).drop_nulls("rank")
    longest = sums.sort("waited", "rank", descending=[True, False])["rank"].head(1).to_list()
    # The median of few ranks has part of the latest one's time in it.
    return Waiting([late[0]], longest, gain_s, max(gain_s, every.mean_s))
