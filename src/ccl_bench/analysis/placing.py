"""In which window something happened."""

from __future__ import annotations

from ccl_bench.analysis.intervals import END, START
from ccl_bench.frames import pl


def placed(rows: pl.DataFrame, windows: pl.DataFrame, at: str = START) -> pl.DataFrame:
    """Return the rows whose time `at` lies in one of `windows`, with that window's row as `window`.

    `windows` has `start_ns` and `end_ns`, is sorted and disjoint. Unlike clipping, this keeps what
    has no length.
    """
    known = rows.drop_nulls(at)
    window = windows[END].search_sorted(known[at], side="right").cast(pl.Int64)
    bounds = windows.select(window=pl.int_range(pl.len(), dtype=pl.Int64), _from=pl.col(START))
    found = known.with_columns(window.alias("window")).join(bounds, on="window", maintain_order="left")
    return found.filter(pl.col(at) >= pl.col("_from")).drop("_from")


def per_window(windows: pl.DataFrame, *sums: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each of `windows`, with the columns of `sums` by `window`, else null."""
    rows = windows.select(window=pl.int_range(pl.len(), dtype=pl.Int64))
    for table in sums:
        rows = rows.join(table, on="window", how="left", maintain_order="left")
    return rows
