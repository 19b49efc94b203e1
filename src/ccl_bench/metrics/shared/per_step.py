"""Times and shares per step: the mean over steps that a metric is, and each step for itself."""

from __future__ import annotations

from typing import Any

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.rows import (
    RECORD,
    SECOND_NS,
    by_rank,
    each_rank,
    need_rows,
    ranks_in,
    step_labels,
    window_of,
)

MOST_STEPS = 1_000
"""Steps that details list one by one; of more, as many evenly spread ones are listed."""

_STEP = ("iteration", "step")


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
        details={
            "per_rank_s": by_rank(per_rank, "s"),
            "per_step_s": seconds_by_step(table, steps, column),
            **(details or {}),
        },
        window=window_of(steps),
        ranks=ranks_in(steps),
    )


def shares_by_rank(table: pl.DataFrame, part: str, whole: str) -> pl.DataFrame:
    """Return `rank` and `pct`: one column's sum as percent of another's, for ranks where that is not 0."""
    sums = table.group_by(each_rank(), maintain_order=True).agg(
        pl.col(part).sum().alias("_part"), pl.col(whole).sum().alias("_whole")
    )
    share = (100 * pl.col("_part") / pl.col("_whole")).alias("pct")
    return (
        sums.filter(pl.col("_whole") > 0)
        .select("rank", share)
        .sort("rank", nulls_last=True, maintain_order=True)
    )


def by_step(values: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {step: mean of a column over its rows}, in order, for at most `MOST_STEPS` steps.

    Rows are in a fixed order, and added up in it, so that the same run gives the same bytes.
    """
    rows = values.group_by(_STEP, maintain_order=True).agg(pl.col(column))
    listed = few_steps(rows.with_columns(pl.col(column).list.mean()).sort(_STEP, nulls_last=False))
    return dict(zip(step_labels(listed), listed[column], strict=True))


def few_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return at most `MOST_STEPS` rows, evenly spread."""
    return rows.gather_every(-(-rows.height // MOST_STEPS) or 1)


def seconds_by_step(table: pl.DataFrame, steps: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {step: a column of nanoseconds summed over the step's rows, mean over ranks, s}."""
    sums = table.group_by("trace", *_STEP).agg(pl.col(column).sum())
    rows = steps.select("trace", *_STEP).join(
        sums, on=["trace", *_STEP], how="left", nulls_equal=True, maintain_order="left"
    )
    return by_step(rows.with_columns(pl.col(column).fill_null(0) / SECOND_NS), column)


def shares_by_step(table: pl.DataFrame, part: str, whole: str) -> dict[str, float]:
    """Return {step: one column's sum as percent of another's, mean over ranks where that is not 0}."""
    sums = table.group_by("trace", *_STEP, maintain_order=True).agg(
        pl.col(part).sum().alias("part"), pl.col(whole).sum().alias("whole")
    )
    shares = sums.filter(pl.col("whole") > 0).with_columns(
        (100 * pl.col("part") / pl.col("whole")).alias("pct")
    )
    return by_step(shares, "pct")


def mean_of(table: pl.DataFrame, column: str) -> float:
    """Return the mean of a column that is not empty."""
    return float(table.select(pl.col(column).mean()).item())
