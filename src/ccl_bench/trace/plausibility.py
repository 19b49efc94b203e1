"""Leave out events whose time cannot be true, and say how many.

Overflowed counters give durations of days (TraceLens#669), dropped records give a start of
zero (kineto#109). One such event would stretch every window and union it touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.findings import Finding
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_NS = 86_400 * 10**9
"""No profiler window is a day long, and no event in it starts a day from the others."""


def middle_of(starts: pl.Series) -> int | None:
    """Return the median of the starts of all events, ns."""
    middle = starts.median()
    return int(middle) if isinstance(middle, int | float) else None


def _starts(tables: dict[str, pl.DataFrame]) -> pl.Series:
    starts = [table["start_ns"] for table in tables.values() if "start_ns" in table.columns]
    return pl.concat(starts) if starts else pl.Series(dtype=pl.Int64)


def screened(
    tables: dict[str, pl.DataFrame], file: str, middle: int | None = None
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without impossible events, and a finding for each table that had some.

    `middle` is the median start of all events where these are not all tables.
    """
    middle = middle_of(_starts(tables)) if middle is None else middle
    if middle is None:
        return tables, []
    kept = {name: _plausible(table, middle) for name, table in tables.items()}
    return kept, list(_findings(tables, kept, file))


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
    least, most = cast("tuple[int, int]", (column.min(), column.max()))
    return first <= least and most <= last


def _findings(
    before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame], file: str
) -> Iterator[Finding]:
    for name, table in before.items():
        dropped = table.height - after[name].height
        if dropped:
            yield Finding(
                "impossible-time",
                "warning",
                f"{dropped} rows of {name} have a missing, negative or day-long time and were left out",
                file,
                count=dropped,
                touches=(name,),
            )
