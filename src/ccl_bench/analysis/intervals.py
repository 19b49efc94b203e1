"""Arithmetic of half-open intervals `[start_ns, end_ns)` in tables, in whole nanoseconds.

Time shares come from unions, never from sums of durations, so that what runs at the same
time counts once. Lengths of intersections and differences follow from lengths of unions:
|A ∩ B| = |A| + |B| - |A ∪ B|, |A - B| = |A ∪ B| - |B|.
"""

from __future__ import annotations

from ccl_bench.base.lazy_polars import pl

START, END = "start_ns", "end_ns"

_LONG_AGO = -(1 << 62)
"""When nothing had begun yet, ns."""


def clip(intervals: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of `intervals` inside each of `windows`, with the window's row as `window`.

    `windows` has `start_ns` and `end_ns`, is sorted and disjoint. An interval that reaches over
    several windows gives one part in each. Other columns of `intervals` are kept. Empty parts
    are dropped.
    """
    starts, ends = windows[START], windows[END]
    first = ends.search_sorted(intervals[START], side="right").cast(pl.Int64)
    last = starts.search_sorted(intervals[END], side="left").cast(pl.Int64)
    touched = last - first
    if touched.null_count() == 0 and _most(touched) <= 1:
        parts = intervals.with_columns(first.alias("window")).filter(touched == 1)
    else:
        rows = pl.int_ranges(first, pl.max_horizontal(first, last), dtype=pl.Int64)
        parts = intervals.with_columns(rows.alias("window")).explode("window", empty_as_null=False)
    opened, closed = (bound[parts["window"].cast(pl.UInt32)] for bound in (starts, ends))
    inside = parts.with_columns(
        pl.max_horizontal(START, opened.alias("_from")).alias(START),
        pl.min_horizontal(END, closed.alias("_to")).alias(END),
    )
    return inside.filter(inside[START] < inside[END])


def _most(numbers: pl.Series) -> int:
    """Return the largest of whole numbers; 0 for none."""
    found = numbers.max()
    return found if isinstance(found, int) else 0


def merge_intervals(intervals: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the union of `intervals` as disjoint sorted intervals, apart for each value of `by`."""
    if not by:
        return pl.DataFrame(_runs(intervals))
    keys = list(by)
    ordered = intervals.select(*keys, START, END).filter(pl.col(START) < pl.col(END)).sort(*keys, START)
    reach = pl.col(END).cum_max().shift(1)
    opens = (pl.col(START) > reach.over(keys)).fill_null(value=True)
    return (
        ordered.with_columns(opens.cum_sum().alias("_run"))
        .group_by(*keys, "_run", maintain_order=True)
        .agg(pl.col(START).first(), pl.col(END).max())
        .drop("_run")
    )


def outermost(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that do not lie wholly inside another, in order; of equal ones the first."""
    ordered = intervals.sort(START, END, descending=[False, True], maintain_order=True)
    return ordered.filter((pl.col(END) > pl.col(END).cum_max().shift(1)).fill_null(value=True))


def _runs(intervals: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the starts and ends of the union of `intervals`, disjoint and sorted."""
    starts, ends = intervals[START], intervals[END]
    has_length = starts < ends
    if has_length.sum() < has_length.len():
        starts, ends = starts.filter(has_length), ends.filter(has_length)
    if not starts.is_sorted():
        order = starts.arg_sort()
        starts, ends = starts[order], ends[order]
    if starts.is_empty():
        return starts, ends
    reach, edge = ends.cum_max(), pl.Series([True])
    opens = starts.slice(1) > reach.slice(0, reach.len() - 1)
    return starts.filter(pl.concat([edge, opens])), reach.filter(pl.concat([opens, edge]))


def union_lengths(intervals: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return the length of the union of `intervals` inside each of `windows`, ns.

    It is what the union covers up to the end of the window less what it covers up to its start.
    """
    starts, ends = _runs(intervals)
    times = pl.concat([windows[START], windows[END]])
    begun = starts.search_sorted(times, side="right")
    length_upto = pl.concat([pl.Series([0]), (ends - starts).cum_sum()])
    still = pl.concat([pl.Series([_LONG_AGO]), ends])[begun] - times
    covered = length_upto[begun] - still * (still > 0).cast(pl.Int64)
    lengths = (covered.slice(windows.height) - covered.slice(0, windows.height)).alias("length")
    return lengths.fill_null(0) if lengths.null_count() else lengths


def subtract(intervals: pl.DataFrame, blockers: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of `intervals` that lie in none of `blockers`; other columns are kept."""
    if intervals.is_empty():
        return intervals
    first, last = intervals[START].min(), intervals[END].max()
    busy = merge_intervals(blockers)
    gaps = pl.DataFrame(
        {
            START: pl.concat([pl.Series([first], dtype=pl.Int64), busy[END]]),
            END: pl.concat([busy[START], pl.Series([last], dtype=pl.Int64)]),
        }
    ).filter(pl.col(START) < pl.col(END))
    return clip(intervals, gaps).drop("window")
