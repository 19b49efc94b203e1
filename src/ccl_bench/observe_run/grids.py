"""Ranks and steps drawn together where there are more than a chart can show."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.shared.rows import SECOND_NS, label, step_labels
from ccl_bench.result.observation import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS = 128
"""Rows that a chart has at most."""
CELLS = 4000
"""Numbers that a chart has at most."""
STEPS = 400
"""Points along a line at most."""

STEP = ("iteration", "step")


def blocks(names: Sequence[str], most: int) -> tuple[list[str], int]:
    """Return the names of equal runs of neighbours, at most `most` of them, and how many each holds."""
    each = max(1, ceil(len(names) / most))
    runs = [names[start : start + each] for start in range(0, len(names), each)]
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs], each


def ranks_of(table: pl.DataFrame, most: int = RANKS) -> tuple[pl.DataFrame, list[str], int]:
    """Return `table` with the number of its `row`, the names of rows, and the ranks behind each."""
    ranks = table.select("rank").unique().sort("rank", nulls_last=True).with_row_index("row")
    names, each = blocks([label(rank) for rank in ranks["rank"]], most)
    joined = table.join(ranks, on="rank", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.col("row").cast(pl.Int64) // each), names, each


def steps_of(table: pl.DataFrame, most: int = STEPS) -> tuple[pl.DataFrame, list[str], int]:
    """Return `table` with the number of its `column`, the names of columns, and the steps behind each."""
    steps = table.select(STEP).unique().sort(STEP).with_row_index("column")
    names, each = blocks(step_labels(steps), most)
    joined = table.join(steps, on=STEP, nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.col("column").cast(pl.Int64) // each), names, each


def grid(table: pl.DataFrame, value_ns: str, cells: int = CELLS) -> Grid:
    """Return the mean of a column for each rank and step, of neighbours where there are too many."""
    rows, ranks, ranks_each = ranks_of(table)
    placed, steps, steps_each = steps_of(rows, max(1, min(STEPS, cells // max(1, len(ranks)))))
    means = placed.group_by("row", "column").agg(pl.col(value_ns).mean() / SECOND_NS)
    values: list[list[float | None]] = [[None] * len(steps) for _ in ranks]
    for row, column, value in means.iter_rows():
        values[row][column] = value
    return Grid(ranks, steps, values, ranks_each, steps_each)
