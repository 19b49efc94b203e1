"""Times of an export: nanoseconds since the session began, put on the clock of the recording host.

Reports of several ranks share that clock once each adds its own session start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.findings import Finding
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.trace.formats.nsys.database import Database

LATEST_NS = 2**61
"""Times beyond this (73 years) are no times: sums of a few of them would not fit 64 bits."""

DAY_NS = 86_400 * 10**9
"""No profiler window is a day long, and no event in it starts a day from the others."""

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


def screened(tables: dict[str, pl.DataFrame], file: str) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without rows whose time cannot be true, and a finding for each that had some."""
    starts = [table["start_ns"] for table in tables.values() if "start_ns" in table.columns]
    middle = pl.concat(starts).drop_nulls().median() if starts else None
    if not isinstance(middle, int | float):
        middle = 0
    kept = {name: _plausible(table, int(middle)) for name, table in tables.items()}
    return kept, list(_findings(tables, kept, file))


def _plausible(table: pl.DataFrame, middle: int) -> pl.DataFrame:
    if "start_ns" not in table.columns:
        return table
    near = (pl.col("start_ns") - middle).abs() < DAY_NS
    duration = (pl.col("end_ns") - pl.col("start_ns")).is_between(0, DAY_NS)
    is_plausible = table.select((near & duration).fill_null(value=False)).to_series()
    return table if is_plausible.all() else table.filter(is_plausible)


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
