"""Leave out events whose time cannot be true, and say how many.

Overflowed counters give durations of days (TraceLens#669), dropped records give a start of
zero (kineto#109), and a kernel whose end was lost runs beside all that follow it on its stream, which
runs one after the other. One such event would stretch every window and union it touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_NS = 86_400 * 10**9
"""No profiler window is a day long, and no event in it starts a day from the others."""


BESIDE = 100
"""Kernels of one stream may overlap their neighbours a little, and never so many."""

FEW_BESIDE = 0.01
"""Share of the kernels up to which such ones are damaged records, and not the way a device works."""


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
    findings = list(_findings(tables, kept, file))
    if "kernels" in kept:
        alone = _one_after_the_other(kept["kernels"])
        if count := kept["kernels"].height - alone.height:
            message = f"{count} kernels run beside {BESIDE} others or more of their stream and were left out"
            findings.append(
                Finding("impossible-time", "warning", message, file, count=count, touches=("kernels",))
            )
            kept["kernels"] = alone
    return kept, findings


def _one_after_the_other(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels without those during which many others of their own stream start.

    Kernels of one launch are of a graph, whose branches may run beside each other; where more than a few
    do, streams are no streams there.
    """
    if kernels.height <= BESIDE or kernels["stream"].null_count() == kernels.height:
        return kernels
    line = ["device", "stream"]
    placed = kernels.select(*line, "start_ns", "end_ns", "correlation").with_row_index("row")
    later = pl.col("start_ns").shift(-BESIDE).over(line)
    beside = placed.sort("start_ns", "end_ns", maintain_order=True).filter(pl.col("end_ns") > later)
    correlation = kernels["correlation"]
    of_graphs = correlation.filter(correlation.is_duplicated()).unique()
    alone = beside.filter(~pl.col("correlation").is_in(of_graphs.implode()))
    if alone.is_empty() or alone.height > FEW_BESIDE * kernels.height:
        return kernels
    return kernels.with_row_index("row").join(alone, on="row", how="anti", maintain_order="left").drop("row")


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
