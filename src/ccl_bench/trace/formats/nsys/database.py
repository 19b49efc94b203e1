"""Databases of Nsight Systems: opening them, and the origin of their times.

Times are nanoseconds since the session began. Reports of several ranks share the clock of the recording
host once each adds its own session start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_imports import pl
from ccl_bench.trace import sqlite
from ccl_bench.trace.values import LATEST_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ccl_bench.trace.sqlite import Database

EXPORT = sqlite.DatabaseOrigin(
    signs=("StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "EXPORT_META_DATA"),
    is_none="is not an export of Nsight Systems",
    fix="export the report again: nsys export --type sqlite -o NAME.sqlite NAME.nsys-rep",
)


def open_database(path: Path, name: str = "") -> AbstractContextManager[Database]:
    """Open an export; InputError if the file is no database that can be read."""
    return sqlite.open_database(path, name or str(path), EXPORT)


_SETTINGS = ("META_DATA_EXPORT", "EXPORT_META_DATA")


def settings(database: Database) -> dict[str, str]:
    """Return the settings of the export, by name."""
    frames = (database.frame(table, {"name": "text", "value": "text"}) for table in _SETTINGS)
    return dict(row for rows in frames for row in complete_rows(rows))


def complete_rows(rows: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a small table that lack nothing."""
    return (row for row in rows.iter_rows() if None not in row)


def session_start_ns(database: Database) -> int | None:
    """Return the time that those of an export are relative to, ns since the epoch; None if unknown.

    With `--ts-normalize=true` the export has added the session start itself.
    """
    if settings(database).get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        return 0
    starts = database.frame("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "integer"})["utcEpochNs"]
    plausible = [start for start in starts.drop_nulls() if 0 < start < LATEST_NS]
    return plausible[0] if plausible else None


def meanings(
    rows: pl.DataFrame, of: tuple[str, ...], meaning: Callable[[pl.DataFrame], pl.Series]
) -> pl.Series:
    """Return the meaning of each row; each combination of numbers in the columns `of` is looked at once."""
    numbers = rows[list(of)]
    distinct = numbers.unique(maintain_order=True)
    by_numbers = distinct.hstack([meaning(distinct).alias("meaning")])
    return numbers.join(by_numbers, on=of, how="left", nulls_equal=True, maintain_order="left")["meaning"]


def since_epoch(column: str, base_ns: int) -> pl.Expr:
    """Return a time of the export as ns since the epoch; null if it cannot be one."""
    return pl.when(pl.col(column).is_between(-LATEST_NS, LATEST_NS)).then(pl.col(column)) + base_ns


def in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows ordered by `start_ns`, as most tables of an export already are."""
    return rows if rows["start_ns"].is_sorted() else rows.sort("start_ns", maintain_order=True)
