"""Shares of the time of steps, for the metrics that are one."""

from __future__ import annotations

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.rows import RECORD, SECOND_NS, by_rank, each_rank, need_rows, ranks_in, window_of
from ccl_bench.metrics.shared.per_step import shares_by_step


def share_of_steps(breakdown: pl.DataFrame, steps: pl.DataFrame, column: str) -> Measurement:
    """Return a column of `breakdown` as percent of the device windows, over all steps, mean over ranks."""
    need_rows(breakdown, "steps", RECORD)
    totals = (
        breakdown.group_by(each_rank(), maintain_order=True)
        .agg(pl.col(column, "window_ns").sum(), pl.len().alias("steps"))
        .filter(pl.col("window_ns") > 0)
        .sort("rank", maintain_order=True)
    )
    need_rows(totals, "steps of any length", RECORD)
    shares = totals.select(
        "rank",
        (100 * pl.col(column) / pl.col("window_ns")).alias("share_pct"),
        (pl.col(column) / pl.col("steps") / SECOND_NS).alias("per_step_s"),
    )
    return Measurement(
        float(shares.select(pl.col("share_pct").mean()).item()),
        details={
            "per_rank_pct": by_rank(shares, "share_pct"),
            "per_rank_s_per_step": by_rank(shares, "per_step_s"),
            "per_step_pct": shares_by_step(breakdown, column, "window_ns"),
        },
        window=window_of(steps),
        ranks=ranks_in(totals),
    )
