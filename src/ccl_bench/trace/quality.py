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
from ccl_bench.schema.table import keep_rows

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
"""Rows of a table from which on most cannot start in one nanosecond; at most 4 do in real traces."""


def median_start(starts: pl.Series) -> int | None:
    """Return the median of the starts of all events, ns."""
    middle = starts.median()
    return int(middle) if isinstance(middle, int | float) else None


def _starts(tables: dict[str, pl.DataFrame]) -> pl.Series:
    starts = [table["start_ns"] for table in tables.values() if "start_ns" in table.columns]
    return pl.concat(starts, rechunk=True) if starts else pl.Series(dtype=pl.Int64)


def drop_impossible(
    tables: dict[str, pl.DataFrame], file: str, middle: int | None = None
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without impossible events, and a finding for each table that had some.

    `middle` is the median start of all events where these are not all tables. Raises InputError if most
    events are impossible: times of another unit are beyond every range.
    """
    middle = median_start(_starts(tables)) if middle is None else middle
    plausible = {name: _plausible(table, middle or 0) for name, table in tables.items()}
    _check_most(tables, plausible, file)
    findings = [*_findings(tables, plausible, file), *_stopped_clocks(plausible, file)]
    sized = {name: _with_possible_sizes(name, table) for name, table in plausible.items()}
    return sized, [*findings, *_size_findings(plausible, sized, file)]


SIZES = {"memcpy": ("bytes",), "collectives": ("in_elements", "out_elements")}
"""Table → columns that hold sizes."""

_OF_HOST = ("HtoD", "DtoH", "HtoH")


def _with_possible_sizes(name: str, table: pl.DataFrame) -> pl.DataFrame:
    """Return a table in which sizes are unknown that are negative, or that no device could have moved.

    The host is reached through a link that is no faster than those between devices.
    """
    sizes = [column for column in SIZES.get(name, ()) if column in table.columns]
    if not sizes or not table.height:
        return table
    is_possible = [pl.col(column).is_null() | (pl.col(column) >= 0) for column in sizes]
    if name == "memcpy":
        is_of_host = pl.col("kind").is_in(_OF_HOST)
        limit = pl.when(is_of_host).then(fastest_link_bytes_per_s()).otherwise(fastest_memory_bytes_per_s())
        time_ns = pl.col("end_ns") - pl.col("start_ns") + ROUNDING_NS
        is_possible = [is_possible[0] & (pl.col("bytes").fill_null(0) <= time_ns * limit / SECOND_NS)]
    masks = table.select(mask.alias(column) for mask, column in zip(is_possible, sizes, strict=True))
    impossible = [column for column in sizes if not masks[column].all()]
    return table.with_columns(pl.when(masks[column]).then(column).alias(column) for column in impossible)


def _size_findings(
    before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame], file: str
) -> Iterator[Finding]:
    for name, columns in SIZES.items():
        if name not in before:
            continue
        lost = [after[name][each].null_count() - before[name][each].null_count() for each in columns]
        if count := max(lost, default=0):
            message = (
                f"{counted(count, 'row')} of {name} with a size that is negative or no device could move"
            )
            yield Finding("sizes-impossible", "warning", message, file, count=count, touches=(name,))


def _check_most(before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame], file: str) -> None:
    for name, table in before.items():
        lost = table.height - after[name].height
        if table.height >= STILL and 2 * lost > table.height:
            message = f"{lost:,} of {table.height:,} rows of {name} have no possible time"
            raise InputError(
                message, where=file, fix="check the unit of its times, or record the trace again"
            )


def _plausible(table: pl.DataFrame, middle: int) -> pl.DataFrame:
    if "start_ns" not in table.columns or not table.height:
        return table
    start, duration = table["start_ns"], table["end_ns"] - table["start_ns"]
    near, short = (middle - DAY_NS + 1, middle + DAY_NS - 1), (0, DAY_NS)
    if _lies_within(start, *near) and _lies_within(duration, *short):
        return table
    return table.filter(start.is_between(*near) & duration.is_between(*short))


def _lies_within(column: pl.Series, first: int, last: int) -> bool:
    """Whether all numbers of a column are there and none is below `first` or above `last`."""
    if column.null_count():
        return False
    least, greatest = cast("tuple[int, int]", (column.min(), column.max()))
    return first <= least and greatest <= last


def _findings(
    before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame], file: str
) -> Iterator[Finding]:
    for name, table in before.items():
        count = table.height - after[name].height
        if count:
            yield Finding(
                "impossible-time",
                "warning",
                f"{counted(count, 'row')} of {name} left out: the time is missing, negative or day-long",
                file,
                count=count,
                touches=(name,),
            )


def _stopped_clocks(tables: dict[str, pl.DataFrame], file: str) -> Iterator[Finding]:
    """Yield a finding for each table of which more than half the rows have one start, which is the median."""
    for name, table in tables.items():
        if "start_ns" not in table.columns or table.height < STILL:
            continue
        count = int((table["start_ns"] == median_start(table["start_ns"])).sum())
        if 2 * count > table.height:
            message = f"{count:,} of {table.height:,} rows of {name} start at the same nanosecond"
            yield Finding("times-equal", "error", message, file, count=count, touches=(name,))


def doubt_ids(tables: Mapping[str, pl.DataFrame], file: str) -> Iterator[Finding]:
    """Yield a finding for each table in which numbers are negative, or lack where most rows have one."""
    for name, column in NUMBERED.items():
        if name not in tables or not (numbers := tables[name][column]).len():
            continue
        lacking = numbers.null_count() if numbers.null_count() < FEW_LACK * numbers.len() else 0
        if count := lacking + int((numbers < 0).sum()):
            message = f"{counted(count, 'row')} of {name} without a usable {column} number"
            yield Finding("ids-damaged", "warning", message, file, count=count, touches=(name,))
    if "kernels" in tables and (count := _contradicting_names(tables["kernels"])):
        subject = counted(count, "kernel is", "kernels are")
        message = f"{subject} named after another collective than their arguments state, which count"
        yield Finding("names-contradict", "warning", message, file, count=count, touches=("calls",))


_OWN_KERNEL = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that NCCL runs in kernels of their name, if all members have as much."""


def _contradicting_names(kernels: pl.DataFrame) -> int:
    """Return how many kernels bear the name of one collective and state another."""
    pairs = kernels.lazy().drop_nulls("collective").group_by("name", "collective").len().collect()
    counts = (
        count
        for name, collective, count in pairs.cast({"name": pl.String}).iter_rows()
        if {of_kernel(name), canonical(collective)} <= {*_OWN_KERNEL}
        and of_kernel(name) != canonical(collective)
    )
    return sum(counts)


_ROW = "place in the table"


def drop_repeated(
    tables: dict[str, pl.DataFrame], file: str
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without copies of rows, and a finding for each table that had some."""
    distinct = {name: _distinct(table) for name, table in tables.items()}
    lost = {name: table.height - distinct[name].height for name, table in tables.items()}
    return distinct, [_finding(name, count, file) for name, count in lost.items() if count]


def _distinct(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table without rows that are alike in every column; only rows of one start are compared.

    Where many rows are alike except for their numbers, those are copies too. Of events without length,
    several may lie at one time.
    """
    if "start_ns" not in table.columns or table.height < 2:
        return table
    is_shared = _is_shared(table["start_ns"])
    if is_shared is None:
        return table
    numbered_rows = keep_rows(table.with_row_index(_ROW), is_shared)
    is_beside = numbered_rows[["start_ns", "end_ns"]].is_duplicated()
    if not is_beside.any():
        return table
    adjacent = keep_rows(numbered_rows, is_beside)
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
    if first.height == rows.height:
        return rows.clear()
    return rows.join(first.select(_ROW), on=_ROW, how="anti")


def _is_shared(starts: pl.Series) -> pl.Series | None:
    """Return for each start whether another row has it too; None if no two rows share one."""
    if not starts.is_sorted():
        is_duplicate = starts.is_duplicated()
        return is_duplicate if is_duplicate.any() else None
    is_next, none = starts.slice(1) == starts.slice(0, starts.len() - 1), pl.Series([False])
    if not is_next.any():
        return None
    return pl.concat([none, is_next]) | pl.concat([is_next, none])


def _finding(name: str, count: int, file: str) -> Finding:
    message = f"{counted(count, 'row')} of {name} not counted, because they repeat others"
    return Finding("events-repeated", "warning", message, file, count=count, touches=(name,))
