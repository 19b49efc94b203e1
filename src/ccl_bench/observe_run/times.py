"""Times of steps, of their parts and of waiting, for each rank."""

from __future__ import annotations

from ccl_bench.analysis.communication.waits import waits_by_rank_and_step
from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.shared.rows import SECOND_NS
from ccl_bench.observe_run.grids import grid, ranks_of, steps_of
from ccl_bench.result.observation import Grid, Spread, StepTimes, TimeParts

_FEW_RANKS = 8
"""Ranks whose lines can be told apart by colour."""

_PARTS = ("window", "compute", "exposed_communication", "exposed_memory", "idle", "fused")


def step_times(table: pl.DataFrame) -> StepTimes | None:
    """Return how long steps took, by step and by rank; None without steps."""
    if table.is_empty():
        return None
    by_step, steps, steps_each = steps_of(table)
    by_rank, ranks, ranks_each = ranks_of(table)
    few = len(ranks) <= _FEW_RANKS and ranks_each == 1
    return StepTimes(
        ", ".join(sorted(table["source"].drop_nulls().unique())),
        _spreads(by_step, "column", steps),
        _spreads(by_rank, "row", ranks),
        grid(table, "duration_ns") if few else None,
        steps_each,
        ranks_each,
    )


def _spreads(table: pl.DataFrame, key: str, names: list[str]) -> list[Spread]:
    seconds = pl.col("duration_ns") / SECOND_NS
    found = (
        table.group_by(key)
        .agg(
            pl.len().alias("count"),
            seconds.min().alias("min"),
            seconds.median().alias("p50"),
            seconds.max().alias("max"),
        )
        .sort(key)
    )
    return [Spread(names[place], *numbers) for place, *numbers in found.iter_rows()]


def time_parts(breakdown: pl.DataFrame) -> tuple[list[TimeParts], int]:
    """Return where the time of each rank's mean step went, and the ranks behind each entry.

    Means of ranks are means of their means, so that the parts still add up to the window.
    """
    means = breakdown.group_by("rank").agg(
        (pl.col(f"{part}_ns").mean() / SECOND_NS).alias(part) for part in _PARTS
    )
    rows, names, each = ranks_of(means)
    found = rows.group_by("row").agg(pl.col(_PARTS).mean()).sort("row")
    return [TimeParts(names[place], *parts) for place, *parts in found.iter_rows()], each


def waits(table: pl.DataFrame) -> Grid | None:
    """Return how long each rank waited in each step; None where no wait is known."""
    return None if table.is_empty() else grid(waits_by_rank_and_step(table), "wait_ns")
