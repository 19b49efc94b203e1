"""Concatenate the small tables of many traces as they come, so that memory holds them in few chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.run.trace_tables import TraceTables

KEYS = ("trace", "rank", "iteration")
"""Columns that every table of a run carries beside its own: which trace a row is from, and whose it is."""

BLOCK = 32
"""Traces whose tables are made one as soon as all of them are there: small tables are mostly overhead."""

Tables = dict[str, "pl.DataFrame"]


class ConcatenatedTables:
    """The tables of the traces that have come so far."""

    def __init__(self, names: Sequence[str], traces: int) -> None:
        self._names = names
        self._traces = traces
        self._loose: dict[int, dict[int, Tables]] = {}
        self._blocks: dict[int, Tables] = {}

    def take(self, position: int, trace: TraceTables) -> None:
        """Take the tables out of what the trace at `position` came to."""
        number = position // BLOCK
        loose = self._loose.setdefault(number, {})
        loose[position] = {name: self._rows(name, position, trace) for name in trace.tables}
        trace.tables, trace.further = {}, []
        if len(loose) == min(BLOCK, self._traces - number * BLOCK):
            del self._loose[number]
            together = self._joined([loose[each] for each in sorted(loose)])
            self._blocks[number] = {name: _compact(table) for name, table in together.items()}

    def _rows(self, name: str, position: int, trace: TraceTables) -> pl.DataFrame:
        """Return the rows of one table; each further device of a process counts as a trace of its own.

        A rank that belongs to several devices is not one's own.
        """
        rank = None if trace.further else trace.rank
        devices = [tables[name] for tables in (trace.tables, *trace.further) if name in tables]
        numbers = range(position, position + self._traces * len(devices), self._traces)
        rows = [_with_keys(*each, rank, trace.trace.iteration) for each in zip(devices, numbers, strict=True)]
        return pl.concat(rows) if trace.further else rows[0]

    def tables(self) -> Tables:
        """Return each table of all traces as one, in the order of the traces."""
        found = self._joined([self._blocks.pop(number) for number in sorted(self._blocks)])
        return {name: found[name] if name in found else empty_table(name) for name in self._names}

    def _joined(self, parts: list[Tables]) -> Tables:
        """Return the tables of several parts as one each; every part is let go when it is done with."""
        found = {}
        for name in self._names:
            tables = [part.pop(name) for part in parts if name in part]
            if tables:
                found[name] = pl.concat(tables)
        return found


def _compact(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose texts lie in memory of their own.

    Each column of text of each trace has 8 kB reserved for texts, which its rows hold until they are copied.
    """
    texts = pl.col(pl.String)
    return table.rechunk().with_columns(texts.cast(pl.Categorical).cast(pl.String))


def _with_keys(table: pl.DataFrame, number: int, rank: int | None, iteration: int | None) -> pl.DataFrame:
    keys = zip(KEYS, (number, rank, iteration), strict=True)
    return table.with_columns(pl.lit(value, dtype=pl.Int64).alias(key) for key, value in keys)


def empty_table(name: str) -> pl.DataFrame:
    """Return a table of single traces with no rows."""
    table = TABLES[name] if name in TABLES else DERIVED.get(name).table
    return table.empty().with_columns(pl.lit(None, dtype=pl.Int64).alias(key) for key in KEYS)
