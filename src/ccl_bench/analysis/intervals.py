"""Arithmetic of half-open intervals `[start_ns, end_ns)` in tables, in whole nanoseconds.

Time shares come from unions, never from sums of durations, so that what runs at the same
time counts once. Lengths of intersections and differences follow from lengths of unions:
|A ∩ B| = |A| + |B| - |A ∪ B|, |A - B| = |A ∪ B| - |B|.
"""

from __future__ import annotations

from ccl_bench.frames import pl

START, END = "start_ns", "end_ns"


def clipped(intervals: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of `intervals` inside each of `windows`, with the window's row as `window`.

    `windows` has `start_ns` and `end_ns`, is sorted and disjoint. An interval that reaches over
    several windows gives one part in each. Other columns of `intervals` are kept. Empty parts
    are dropped.
    """
    starts, ends = windows[START], windows[END]
    first = ends.search_sorted(intervals[START], side="right").cast(pl.Int64)
    last = starts.search_sorted(intervals[END], side="left").cast(pl.Int64)
    parts = intervals.with_columns(
        pl.int_ranges(first, pl.max_horizontal(first, last), dtype=pl.Int64).alias("window")
    ).explode("window", empty_as_null=False)
    bounds = windows.select(pl.col(START).alias("_from"), pl.col(END).alias("_to"))
    bounds = bounds.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("window"))
    return (
        parts.join(bounds, on="window", maintain_order="left")
        .with_columns(
            pl.max_horizontal(START, "_from").alias(START), pl.min_horizontal(END, "_to").alias(END)
        )
        .filter(pl.col(START) < pl.col(END))
        .drop("_from", "_to")
    )


def merged(intervals: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the union of `intervals` as disjoint sorted intervals, apart for each value of `by`."""
    keys = list(by)
    ordered = intervals.select(*keys, START, END).filter(pl.col(START) < pl.col(END)).sort(*keys, START)
    reach = pl.col(END).cum_max().shift(1)
    opens = (pl.col(START) > (reach.over(keys) if keys else reach)).fill_null(value=True)
    return (
        ordered.with_columns(opens.cum_sum().alias("_run"))
        .group_by(*keys, "_run", maintain_order=True)
        .agg(pl.col(START).first(), pl.col(END).max())
        .drop("_run")
    )


def union_lengths(intervals: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return the length of the union of `intervals` inside each of `windows`, ns."""
    inside = merged(clipped(intervals.select(START, END), windows), "window")
    lengths = inside.group_by("window").agg((pl.col(END) - pl.col(START)).sum().alias("length"))
    rows = pl.DataFrame({"window": pl.int_range(windows.height, eager=True, dtype=pl.Int64)})
    return rows.join(lengths, on="window", how="left", maintain_order="left")["length"].fill_null(0)


def outside(intervals: pl.DataFrame, blockers: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of `intervals` that lie in none of `blockers`; other columns are kept."""
    if intervals.is_empty():
        return intervals
    first, last = intervals[START].min(), intervals[END].max()
    busy = merged(blockers)
    gaps = pl.DataFrame(
        {
            START: pl.concat([pl.Series([first], dtype=pl.Int64), busy[END]]),
            END: pl.concat([busy[START], pl.Series([last], dtype=pl.Int64)]),
        }
    ).filter(pl.col(START) < pl.col(END))
    return clipped(intervals, gaps).drop("window")
