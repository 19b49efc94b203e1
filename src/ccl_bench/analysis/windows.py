"""In which window something happened, and to which step work belongs."""

from __future__ import annotations

from ccl_bench.analysis.intervals import END, START
from ccl_bench.base.lazy_polars import pl
from ccl_bench.result import WHOLE_TRACE

PATTERN = "communication pattern"
"""The source of steps that were found in what the kernels repeat."""

BY_START = (PATTERN, WHOLE_TRACE)
"""Sources of steps whose windows are the device's own, so that work belongs where it starts."""


def assign_window(rows: pl.DataFrame, windows: pl.DataFrame, at: str = START) -> pl.DataFrame:
    """Return the rows whose time `at` lies in one of `windows`, with that window's row as `window`.

    `windows` has `start_ns` and `end_ns`, is sorted and disjoint. Unlike clipping, this keeps what
    has no length.
    """
    known = rows.drop_nulls(at)
    window = windows[END].search_sorted(known[at], side="right").cast(pl.Int64)
    bounds = windows.select(window=pl.int_range(pl.len(), dtype=pl.Int64), _from=pl.col(START))
    found = known.with_columns(window.alias("window")).join(bounds, on="window", maintain_order="left")
    return found.filter(pl.col(at) >= pl.col("_from")).drop("_from")


def sum_per_window(windows: pl.DataFrame, *sums: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each of `windows`, with the columns of `sums` by `window`, else null."""
    rows = windows.select(window=pl.int_range(pl.len(), dtype=pl.Int64))
    for table in sums:
        rows = rows.join(table, on="window", how="left", maintain_order="left")
    return rows


def window_at(times: pl.Series, windows: pl.DataFrame) -> pl.Series:
    """Return for each time the row of the window that it lies in; null for none.

    `windows` is as for `assign_window`.
    """
    rows = windows[END].search_sorted(times.fill_null(0), side="right").cast(pl.Int64)
    begins = windows[START].extend_constant(None, 1).gather(rows)
    return pl.select(pl.when(times >= begins).then(rows)).to_series()


def assign_step(work: pl.DataFrame, steps: pl.DataFrame) -> pl.Series:
    """Return for each piece of work the row of the step that it belongs to; null for none.

    Work belongs to the step that launched it, whenever it ran, and to none if it was launched before the
    recording. Where nobody knows, it belongs to the step in whose device window it started. `work` has
    `start_ns`, `launch_ns` and `launched_before`.
    """
    started = window_at(work[START], device_windows(steps))
    if steps["source"].is_in(BY_START).any():
        return started
    launched = window_at(work["launch_ns"], steps.select(START, END))
    unknown = work["launch_ns"].is_null() & ~work["launched_before"]
    return pl.select(pl.when(unknown).then(started).otherwise(launched)).to_series()


def device_windows(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the device windows of `steps` as plain intervals, in the same order."""
    return steps.select(start_ns="device_start_ns", end_ns="device_end_ns")
