"""What many metrics need of the rows they rest on: ranks, windows, one number for each rank."""

from __future__ import annotations

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl

CALLS_OF_STEPS = "calls of steps"
"""The window of numbers that rest on the communication calls that belong to a step."""


def ranks_in(table: pl.DataFrame) -> list[int]:
    """Return the ranks that have rows in `table`, sorted; unknown ones left out."""
    return sorted({*table["rank"].unique()} - {None})


def window_of(steps: pl.DataFrame) -> str:
    """Return how the steps in a table with a `source` column were found."""
    return ", ".join(sorted({*steps["source"].unique()} - {None}))


def label(rank: int | None) -> str:
    """Return how a rank is called in details."""
    return "unknown" if rank is None else str(rank)


def step_labels(table: pl.DataFrame) -> list[str]:
    """Return how each row's step is called in details: its number.

    Recording windows may repeat numbers; where there are several, `20:3` is step 3 of `iteration_20`.
    """
    several = table["iteration"].n_unique() > 1
    rows = zip(table["iteration"], table["step"], strict=True)
    return [f"{window}:{step}" if several else str(step) for window, step in rows]


def each_rank() -> tuple[pl.Expr, pl.Expr]:
    """Return what to group rows by so that a rank counts once, and so does each trace of no known rank.

    Those may be of different devices of a process, over which a mean is taken, and not of their sums.
    """
    rank = pl.col("rank")
    return rank, pl.when(rank.is_null()).then("trace").alias("_trace_without_rank")


def by_rank(table: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {rank: value} of a table with one row a rank; the mean of those of no known rank."""
    means = table.group_by("rank", maintain_order=True).agg(pl.col(column).mean())
    return {label(rank): value for rank, value in means.sort("rank", nulls_last=True).iter_rows()}


def need_rows(table: pl.DataFrame, what: str, fix: str) -> None:
    """Raise NotMeasurable where `table` is empty; `what` is missing then."""
    if table.is_empty():
        raise NotMeasurable(f"the run holds no {what}", fix=fix)


RECORD = "record the run with torch.profiler over a few steps and call prof.step() in each"
"""The advice where a trace holds nothing."""
