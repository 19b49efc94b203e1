"""Count events once that were written twice, and say how many.

Two processes that write one file, or a writer that tries again, leave events twice. No two events of a
trace are alike in everything: on one thread or stream one ends before the next begins, or lies inside it.
"""

from __future__ import annotations

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl

_ROW = "place in the table"


def each_once(tables: dict[str, pl.DataFrame], file: str) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without copies of rows, and a finding for each table that had some."""
    kept = {name: _distinct(table) for name, table in tables.items()}
    lost = {name: table.height - kept[name].height for name, table in tables.items()}
    return kept, [_finding(name, count, file) for name, count in lost.items() if count]


def _distinct(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table without rows that are alike in every column; only rows of one start are compared."""
    if "start_ns" not in table.columns or table.height < 2:
        return table
    is_shared = _is_shared(table["start_ns"])
    if not is_shared.any():
        return table
    times = pl.DataFrame([table[name].filter(is_shared) for name in ("start_ns", "end_ns")])
    if not times.is_duplicated().any():
        return table
    alike = table.with_row_index(_ROW).filter(is_shared)
    first = alike.unique(table.columns, keep="first", maintain_order=True)
    if first.height == alike.height:
        return table
    copies = alike.join(first.select(_ROW), on=_ROW, how="anti")
    return table.with_row_index(_ROW).join(copies, on=_ROW, how="anti", maintain_order="left").drop(_ROW)


def _is_shared(starts: pl.Series) -> pl.Series:
    """Return for each start whether another row has it too."""
    if not starts.is_sorted():
        return starts.is_duplicated()
    is_next, none = starts.slice(1) == starts.slice(0, starts.len() - 1), pl.Series([False])
    return pl.concat([none, is_next]) | pl.concat([is_next, none])


def _finding(name: str, count: int, file: str) -> Finding:
    message = f"{count} rows of {name} are copies of others, and are counted once"
    return Finding("events-repeated", "warning", message, file, count=count, touches=(name,))
