"""Times of an export: nanoseconds since the session began, put on the clock of the recording host.

Reports of several ranks share that clock once each adds its own session start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace.values import LATEST_NS

if TYPE_CHECKING:
    from ccl_bench.trace.formats.nsys.database import Database


_SETTINGS = ("META_DATA_EXPORT", "EXPORT_META_DATA")


def settings(database: Database) -> dict[str, str]:
    """Return what the export says of itself, by name."""
    found = [database.frame(table, {"name": "text", "value": "text"}).drop_nulls() for table in _SETTINGS]
    both = pl.concat(found)
    return dict(zip(both["name"], both["value"], strict=True))


def session_start_ns(database: Database) -> int | None:
    """Return what the times of an export are relative to, ns since the epoch; None where it does not say.

    With `--ts-normalize=true` the export has added the session start itself.
    """
    if settings(database).get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        return 0
    starts = database.frame("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "integer"})["utcEpochNs"]
    known = [start for start in starts.drop_nulls() if 0 < start < LATEST_NS]
    return known[0] if known else None


def absolute(column: str, base_ns: int) -> pl.Expr:
    """Return a time of the export as ns since the epoch; null where it cannot be one."""
    return pl.when(pl.col(column).is_between(-LATEST_NS, LATEST_NS)).then(pl.col(column)) + base_ns
