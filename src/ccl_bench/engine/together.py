"""Put the small tables of many traces together as they come, so that memory holds them in few pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.frames import pl
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.engine.reduction import Reduced

KEYS = ("trace", "rank", "iteration")
"""Columns that every table of a run carries beside its own: which trace a row is from, and whose it is."""

BLOCK = 32
"""Traces whose tables are made one as soon as all of them are there: small tables are mostly overhead."""

Tables = dict[str, "pl.DataFrame"]


class Together:
    """The tables of the traces that have come so far."""

    def __init__(self, names: Sequence[str], traces: int) -> None:
        self._names = names
        self._traces = traces
        self._loose: dict[int, dict[int, Tables]] = {}
        self._blocks: dict[int, Tables] = {}

    def take(self, position: int, trace: Reduced) -> None:
        """Take the tables out of what the trace at `position` came to."""
        number = position // BLOCK
        loose = self._loose.setdefault(number, {})
        loose[position] = {name: _keyed(table, position, trace) for name, table in trace.tables.items()}
        trace.tables = {}
        if len(loose) == min(BLOCK, self._traces - number * BLOCK):
            del self._loose[number]
            together = self._joined([loose[each] for each in sorted(loose)])
            self._blocks[number] = {name: _compact(table) for name, table in together.items()}

    def tables(self) -> Tables:
        """Return each table of all traces as one, in the order of the traces."""
        found = self._joined([self._blocks.pop(number) for number in sorted(self._blocks)])
        return {name: found[name] if name in found else empty(name) for name in self._names}

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


def _keyed(table: pl.DataFrame, position: int, trace: Reduced) -> pl.DataFrame:
    return table.with_columns(
        pl.lit(position, dtype=pl.Int64).alias("trace"),
        pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
        pl.lit(trace.trace.iteration, dtype=pl.Int64).alias("iteration"),
    )


def empty(name: str) -> pl.DataFrame:
    """Return a table of single traces with no rows."""
    table = TABLES[name] if name in TABLES else DERIVED.get(name).table
    return table.empty().with_columns(pl.lit(None, dtype=pl.Int64).alias(key) for key in KEYS)
