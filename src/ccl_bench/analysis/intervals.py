"""Arithmetic of intervals of time: unions, intersections, gaps, and the window each moment lies in.

Every table of a trace comes through here several times, mostly with few rows. So these functions work on
columns and not with expressions: planning a query takes three times as long as the work on a hundred rows.
"""

from __future__ import annotations

from ccl_bench.base.lazy_imports import pl
from ccl_bench.result import WHOLE_TRACE
from ccl_bench.schema.table import keep_rows

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
    first, last = pl.select(
        window=pl.lit(ends).search_sorted(pl.lit(intervals[START]), side="right").cast(pl.Int64),
        last=pl.lit(starts).search_sorted(pl.lit(intervals[END]), side="left").cast(pl.Int64),
    )
    touched = last - first
    if not (touched > 1).any():
        parts = keep_rows(intervals.hstack([first]), touched == 1)
    else:
        rows = pl.int_ranges(first, pl.max_horizontal(first, last), dtype=pl.Int64)
        parts = intervals.with_columns(rows.alias("window")).explode("window", empty_as_null=False)
    window, begins, stops = parts["window"].cast(pl.UInt32), parts[START], parts[END]
    opened, closed = starts[window], ends[window]
    inside = {column.name: column for column in parts.iter_columns()}
    inside[START] = begins.zip_with(begins > opened, opened)
    inside[END] = stops.zip_with(stops < closed, closed)
    return keep_rows(pl.DataFrame(inside), inside[START] < inside[END])


def merge_intervals(intervals: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the union of `intervals` as disjoint sorted intervals, apart for each value of `by`."""
    if not by:
        return pl.DataFrame(_runs(intervals))
    keys = list(by)
    long = keep_rows(intervals[[*keys, START, END]], intervals[START] < intervals[END])
    reach = pl.col(END).cum_max()
    is_first = (pl.col(START) > reach.shift(1)).fill_null(value=True)
    ordered = long.sort(*keys, START).with_columns(reach.over(keys), is_first.over(keys).alias("opens"))
    opens = ordered["opens"]
    last = pl.concat([opens.slice(1), pl.Series([True]).head(opens.len())])
    merged = keep_rows(ordered[[*keys, START]], opens)
    return merged.hstack([ordered[END].filter(last)])


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
        starts, ends = pl.DataFrame([starts, ends]).sort(starts.name)
    if starts.is_empty():
        return starts, ends
    reach, edge = ends if ends.is_sorted() else ends.cum_max(), pl.Series([True])
    opens = starts.slice(1) > reach.slice(0, reach.len() - 1)
    return starts.filter(pl.concat([edge, opens])), reach.filter(pl.concat([opens, edge]))


def union_lengths(intervals: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return the length of the union of `intervals` inside each of `windows`, ns.

    It is what the union covers up to the end of the window less what it covers up to its start.
    """
    starts, ends = _runs(intervals)
    if starts.is_empty():
        return pl.Series("length", [0]).new_from_index(0, windows.height)
    times = pl.concat([windows[START], windows[END]])
    index = pl.lit(starts).search_sorted(pl.lit(times), side="right")
    length_upto = pl.lit(pl.concat([pl.Series([0]), ends - starts])).cum_sum()
    indices, upto = pl.select(index=index, upto=length_upto.gather(index))
    still = pl.concat([pl.Series([_LONG_AGO]), ends])[indices] - times
    covered = upto - still * (still > 0).cast(pl.Int64)
    lengths = (covered.slice(windows.height) - covered.slice(0, windows.height)).alias("length")
    return lengths.fill_null(0) if lengths.null_count() else lengths


def subtract(intervals: pl.DataFrame, blockers: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of `intervals` that lie in none of `blockers`; other columns are kept."""
    if intervals.is_empty():
        return intervals
    first, last = intervals[START].min(), intervals[END].max()
    starts, ends = _runs(blockers)
    begins = pl.concat([pl.Series(START, [first], dtype=pl.Int64), ends])
    stops = pl.concat([starts.alias(END), pl.Series([last], dtype=pl.Int64)])
    gaps = keep_rows(pl.DataFrame([begins, stops]), begins < stops)
    parts = clip(intervals, gaps)
    return parts[intervals.columns]


PATTERN = "communication pattern"
"""The source of steps that were found in what the kernels repeat."""

DEVICE_RANGE = "device range"
"""The source of steps that the device itself shows, as a TPU's does."""

CHOSEN_PROGRAM = "chosen program"
"""The source of steps that are runs of a program that the user chose."""

BY_START = (DEVICE_RANGE, CHOSEN_PROGRAM, PATTERN, WHOLE_TRACE)
"""Sources of steps whose windows are the device's own, so that work belongs where it starts."""


def assign_window(rows: pl.DataFrame, windows: pl.DataFrame, at: str = START) -> pl.DataFrame:
    """Return the rows whose time `at` lies in one of `windows`, with that window's row as `window`.

    `windows` has `start_ns` and `end_ns`, is sorted and disjoint. Unlike clipping, this keeps what
    has no length.
    """
    timed_rows = rows.drop_nulls(at) if rows[at].null_count() else rows
    window = windows[END].search_sorted(timed_rows[at], side="right").alias("window")
    begins = _or_null(windows[START])[window]
    return keep_rows(timed_rows.hstack([window.cast(pl.Int64)]), timed_rows[at] >= begins)


def _or_null(numbers: pl.Series) -> pl.Series:
    """Return whole numbers with a null after them, the value of a position behind the last one."""
    return pl.concat([numbers, pl.Series([None], dtype=pl.Int64)])


def sum_per_window(windows: pl.DataFrame, *sums: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each of `windows`, with the columns of `sums` by `window`, else null.

    A table of `sums` has at most one row a window, as a `group_by("window")` gives.
    """
    columns = [pl.int_range(windows.height, dtype=pl.Int64, eager=True).alias("window")]
    for table in sums:
        row_of = {window: row for row, window in enumerate(table["window"].to_list())}
        rows = pl.Series([row_of.get(window) for window in range(windows.height)], dtype=pl.UInt32)
        columns += [each[rows] for each in table.iter_columns() if each.name != "window"]
    return pl.DataFrame(columns)


def window_at(times: pl.Series, windows: pl.DataFrame) -> pl.Series:
    """Return for each time the row of the window that it lies in; null for none.

    `windows` is as for `assign_window`.
    """
    rows = windows[END].search_sorted(times, side="right")
    is_inside = times >= _or_null(windows[START])[rows]
    return rows.cast(pl.Int64).zip_with(is_inside, _nulls(rows)).alias("window")


def _nulls(like: pl.Series) -> pl.Series:
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, like.len())


def are_of_device(steps: pl.DataFrame) -> bool:
    """Whether the windows of steps are the device's own."""
    return not {*steps["source"]}.isdisjoint(BY_START)


def assign_step(work: pl.DataFrame, steps: pl.DataFrame) -> pl.Series:
    """Return for each piece of work the row of the step that it belongs to; null for none.

    Work belongs to the step that launched it, whenever it ran, and to none if it was launched before the
    recording, also where the whole trace is the only step. Where the launch is unknown, or the device itself
    shows the steps, it belongs to the step in whose device window it started. `work` has `start_ns`,
    `launch_ns` and `launched_before`.
    """
    started = window_at(work[START], device_windows(steps))
    if WHOLE_TRACE in steps["source"]:
        return started.zip_with(~work["launched_before"], _nulls(started))
    if are_of_device(steps):
        return started
    launched = window_at(work["launch_ns"], steps)
    if not work["launch_ns"].null_count():
        return launched
    unknown = work["launch_ns"].is_null() & ~work["launched_before"]
    return started.zip_with(unknown, launched)


def device_windows(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the device windows of `steps` as plain intervals, in the same order."""
    return pl.DataFrame([steps["device_start_ns"].alias(START), steps["device_end_ns"].alias(END)])


def beyond_windows(steps: pl.DataFrame) -> pl.Series:
    """Return how much longer than its device window each of `steps` is, ns: there the host sets the pace."""
    return (steps["length_ns"] - (steps["device_end_ns"] - steps["device_start_ns"])).alias("beyond_ns")
