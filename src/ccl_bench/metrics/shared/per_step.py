"""Times per step, for the metrics that are one."""

from __future__ import annotations

from typing import Any

from ccl_bench.frames import pl
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.rows import RECORD, SECOND_NS, by_rank, need_rows, ranks_in, window_of


def seconds_by_rank(table: pl.DataFrame, steps: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return `rank` and `s`: a column of nanoseconds summed over each rank's rows, a step, in seconds.

    A step without rows counts as 0; every rank with steps has a row.
    """
    counts = steps.group_by("rank").agg(pl.len().alias("steps"))
    sums = table.group_by("rank").agg(pl.col(column).sum())
    per_step = pl.col(column).fill_null(0) / pl.col("steps") / SECOND_NS
    joined = counts.join(sums, on="rank", how="left", nulls_equal=True)
    return joined.select("rank", per_step.alias("s")).sort("rank", nulls_last=True)


def seconds(table: pl.DataFrame, steps: pl.DataFrame, column: str) -> float:
    """Return the mean over ranks of `seconds_by_rank`."""
    return float(seconds_by_rank(table, steps, column).select(pl.col("s").mean()).item())


def time_per_step(
    table: pl.DataFrame, steps: pl.DataFrame, column: str, details: dict[str, Any] | None = None
) -> Measurement:
    """Return a column of nanoseconds as seconds a step, mean over ranks."""
    need_rows(steps, "steps", RECORD)
    per_rank = seconds_by_rank(table, steps, column)
    return Measurement(
        float(per_rank.select(pl.col("s").mean()).item()),
        details={"per_rank_s": by_rank(per_rank, "s"), **(details or {})},
        window=window_of(steps),
        ranks=ranks_in(steps),
    )


def shares_by_rank(table: pl.DataFrame, part: str, whole: str) -> pl.DataFrame:
    """Return `rank` and `pct`: one column's sum as percent of another's, for ranks where that is not 0."""
    sums = table.group_by("rank").agg(pl.col(part).sum().alias("_part"), pl.col(whole).sum().alias("_whole"))
    share = (100 * pl.col("_part") / pl.col("_whole")).alias("pct")
    return sums.filter(pl.col("_whole") > 0).select("rank", share).sort("rank", nulls_last=True)


def mean_of(table: pl.DataFrame, column: str) -> float:
    """Return the mean of a column that is not empty."""
    return float(table.select(pl.col(column).mean()).item())
