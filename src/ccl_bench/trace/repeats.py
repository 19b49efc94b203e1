"""Count events once that were written twice, and say how many.

Two processes that write one file, or a writer that tries again, leave events twice. No two events of a
trace are alike in everything: on one thread or stream one ends before the next begins, or lies inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.findings import Finding

if TYPE_CHECKING:
    from ccl_bench.frames import pl

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
    starts = table["start_ns"]
    if starts.is_sorted() and not (starts.slice(1) == starts.slice(0, table.height - 1)).any():
        return table
    alike = table.with_row_index(_ROW).filter(starts.is_duplicated())
    first = alike.unique(table.columns, keep="first", maintain_order=True)
    if first.height == alike.height:
        return table
    copies = alike.join(first.select(_ROW), on=_ROW, how="anti")
    return table.with_row_index(_ROW).join(copies, on=_ROW, how="anti", maintain_order="left").drop(_ROW)


def _finding(name: str, count: int, file: str) -> Finding:
    message = f"{count} rows of {name} are copies of others, and are counted once"
    return Finding("events-repeated", "warning", message, file, count=count, touches=(name,))
