"""Data quality of a trace: impossible and repeated events are left out and counted.

Overflowed counters give durations of days (TraceLens#669), dropped records give a start of zero (kineto#109).
One such event would stretch every window and union it touches. Two processes that write one file, or a writer
that tries again, leave events twice: no two events of a trace are alike in everything, since on one thread or
stream one ends before the next begins, or lies inside it. A second writer may number the copies anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import ROUNDING_NS, SECOND_NS
from ccl_bench.catalog.collectives import canonical, of_kernel
from ccl_bench.catalog.devices import fastest_link_bytes_per_s, fastest_memory_bytes_per_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CUT_SHORT = frozenset({"file-truncated", "file-broken-off"})
"""Findings after which it is unknown how much of a trace is missing."""

DAY_NS = 86_400 * 10**9
"""No profiler window is a day long, and no event in it starts a day from the others."""

IDS = ("correlation", "external_id", "record_function_id", "sequence_number", "sequence")
"""Columns that number events: copies may have other numbers."""

MANY_COPIES, MANY_COPIES_SHARE = 20, 0.01
"""Rows alike except for their numbers, as a count and a share of a table, from which on they are copies.

Real traces have none but of events without length.
"""

NUMBERED = {
    "kernels": "correlation", "memcpy": "correlation", "launches": "correlation", "collectives": "sequence",
}  # fmt: skip
"""Table → column of numbers from 0 that pair its events with others."""

FEW_LACK = 0.1
"""Share of rows without a number from which on that is how the profiler writes them."""

STILL = 20
"""Rows of a table from which on most cannot start in one nanosecond, nor have impossible times by chance.

At most 4 start together in real traces.
"""


def median_start(starts: pl.Series) -> int | None:
    """Return the median of the starts of all events, ns."""
    middle = starts.median()
    return int(middle) if isinstance(middle, int | float) else None


def drop_impossible(
    tables: dict[str, pl.DataFrame], file: str, middle: int | None = None
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without impossible events, and a finding for each table that had some.

    `middle` is the median start of all events where these are not all tables, ns. Raises InputError if most
    events are impossible: times of another unit are beyond every range.
    """
    starts = [table["start_ns"] for table in tables.values() if "start_ns" in table.columns]
    if middle is None:
        middle = (median_start(pl.concat(starts, rechunk=True)) if starts else None) or 0
    possible: dict[str, pl.DataFrame] = {}
    lost: list[Finding] = []
    stopped: list[Finding] = []
    for name, table in tables.items():
        possible[name] = table
        if "start_ns" not in table.columns or not table.height:
            continue
        start, duration = table["start_ns"], table["end_ns"] - table["start_ns"]
        near, short = (middle - DAY_NS + 1, middle + DAY_NS - 1), (0, DAY_NS)
        if not (_lies_within(start, *near) and _lies_within(duration, *short)):
            possible[name] = table.filter(start.is_between(*near) & duration.is_between(*short))
        rows = possible[name]
        if count := table.height - rows.height:
            if table.height >= STILL and 2 * count > table.height:
                message = f"{count:,} of {table.height:,} rows of {name} have no possible time"
                fix = "check the unit of its times, or record the trace again"
                raise InputError(message, where=file, fix=fix)
            message = f"{counted(count, 'row')} of {name} left out: the time is missing, negative or day-long"
            lost.append(Finding("impossible-time", "warning", message, file, count=count, touches=(name,)))
        if rows.height < STILL:
            continue
        # Where more than half the rows have one start, it is the median: the clock stood still.
        together = int((rows["start_ns"] == median_start(rows["start_ns"])).sum())
        if 2 * together > rows.height:
            message = f"{together:,} of {rows.height:,} rows of {name} start at the same nanosecond"
            stopped.append(Finding("times-equal", "error", message, file, count=together, touches=(name,)))
    sized, resized = _without_impossible_sizes(possible, file)
    return sized, [*lost, *stopped, *resized]


SIZES = {"memcpy": ("bytes",), "collectives": ("in_elements", "out_elements")}
"""Table → columns that hold sizes."""

_OF_HOST = ("HtoD", "DtoH", "HtoH")


def _without_impossible_sizes(
    tables: dict[str, pl.DataFrame], file: str
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables with sizes unknown that are negative or no device could have moved, and findings.

    The host is reached through a link that is no faster than those between devices.
    """
    is_of_host = pl.col("kind").is_in(_OF_HOST)
    limit = pl.when(is_of_host).then(fastest_link_bytes_per_s()).otherwise(fastest_memory_bytes_per_s())
    time_ns = pl.col("end_ns") - pl.col("start_ns") + ROUNDING_NS
    sized, findings = dict(tables), []
    for name, columns in SIZES.items():
        if name not in tables:
            continue
        table = tables[name]
        is_possible = {column: pl.col(column) >= 0 for column in columns}
        if name == "memcpy":
            is_possible["bytes"] &= pl.col("bytes") <= time_ns * limit / SECOND_NS
        sized[name] = table.with_columns(
            pl.when(mask).then(column).alias(column) for column, mask in is_possible.items()
        )
        if count := max(sized[name][each].null_count() - table[each].null_count() for each in columns):
            message = (
                f"{counted(count, 'row')} of {name} with a size that is negative or no device could move"
            )
            findings.append(
                Finding("sizes-impossible", "warning", message, file, count=count, touches=(name,))
            )
    return sized, findings


def _lies_within(column: pl.Series, first: int, last: int) -> bool:
    """Whether all numbers of a column are there and none is below `first` or above `last`."""
    if column.null_count():
        return False
    least, greatest = cast("tuple[int, int]", (column.min(), column.max()))
    return first <= least and greatest <= last


def doubt_ids(tables: Mapping[str, pl.DataFrame], file: str) -> Iterator[Finding]:
    """Yield a finding for each table in which numbers are negative, or lack where most rows have one."""
    for name, column in NUMBERED.items():
        if name not in tables or not (numbers := tables[name][column]).len():
            continue
        lacking = numbers.null_count() if numbers.null_count() < FEW_LACK * numbers.len() else 0
        if count := lacking + int((numbers < 0).sum()):
            message = f"{counted(count, 'row')} of {name} without a usable {column} number"
            yield Finding("ids-damaged", "warning", message, file, count=count, touches=(name,))
    if "kernels" not in tables:
        return
    named_calls = tables["kernels"].drop_nulls("collective").group_by("name", "collective").len()
    contradicting = sum(
        count
        for name, collective, count in named_calls.cast({"name": pl.String}).iter_rows()
        if of_kernel(name) != canonical(collective)
        and {of_kernel(name), canonical(collective)} <= {*_OWN_KERNEL}
    )
    if contradicting:
        subject = counted(contradicting, "kernel is", "kernels are")
        message = f"{subject} named after another collective than their arguments state, which count"
        yield Finding("names-contradict", "warning", message, file, count=contradicting, touches=("calls",))


_OWN_KERNEL = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that NCCL runs in kernels of their name, if all members have as much."""


_ROW = "place in the table"


def drop_repeated(
    tables: dict[str, pl.DataFrame], file: str
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without copies of rows, and a finding for each table that had some."""
    distinct, findings = {}, []
    for name, table in tables.items():
        distinct[name] = _distinct(table)
        if count := table.height - distinct[name].height:
            message = f"{counted(count, 'row')} of {name} not counted, because they repeat others"
            findings.append(
                Finding("events-repeated", "warning", message, file, count=count, touches=(name,))
            )
    return distinct, findings


def _distinct(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table without rows that are alike in every column; only rows of one start are compared.

    Where many rows are alike except for their numbers, those are copies too. Of events without length,
    several may lie at one time.
    """
    if "start_ns" not in table.columns or table.height < 2:
        return table
    starts = table["start_ns"]
    if starts.is_sorted():  # nearly always, and comparing neighbours is faster than hashing all
        is_next, none = starts.slice(1) == starts.slice(0, starts.len() - 1), pl.Series([False])
        is_shared = pl.concat([none, is_next]) | pl.concat([is_next, none])
    else:
        is_shared = starts.is_duplicated()
    if not is_shared.any():
        return table
    adjacent = table.with_row_index(_ROW).filter(is_shared)
    adjacent = adjacent.filter(adjacent[["start_ns", "end_ns"]].is_duplicated())
    if adjacent.is_empty():
        return table
    is_point = pl.col("end_ns") == pl.col("start_ns")
    numbers = [pl.when(is_point).then(name).alias(name) for name in IDS if name in table.columns]
    copies = _copies(adjacent.with_columns(numbers), table.columns)
    if copies.height and copies.height < max(MANY_COPIES, MANY_COPIES_SHARE * table.height):
        copies = _copies(adjacent, table.columns)
    if copies.is_empty():
        return table
    return table.with_row_index(_ROW).join(copies, on=_ROW, how="anti", maintain_order="left").drop(_ROW)


def _copies(rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return the rows that are like an earlier one in these columns."""
    first = rows.unique(columns, keep="first", maintain_order=True)
    return rows.join(first.select(_ROW), on=_ROW, how="anti")
