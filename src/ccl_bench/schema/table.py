"""Declaration of a table: named columns, each with a type and a meaning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the name of its polars type, and what it holds."""

    dtype: str
    """A polars type name; `List(Int64)` and the like for lists."""
    doc: str
    """What it holds, with its unit."""

    @property
    def type(self) -> pl.DataType:
        """The polars type itself."""
        return _polars_type(self.dtype)


@cache
def _polars_type(name: str) -> pl.DataType:
    if name.startswith("List("):
        return pl.List(_polars_type(name[5:-1]))
    kind: pl.DataType = getattr(pl, name)()
    return kind


@cache
def _empty(columns: tuple[tuple[str, str], ...]) -> pl.DataFrame:
    return pl.DataFrame(schema={name: _polars_type(dtype) for name, dtype in columns})


_UNITS = {
    "blocks_per_sm": "",
    "warps_per_sm": "",
    "bus_bandwidth": "GB/s",
    "bytes": "bytes",
    "flops": "FLOP",
    "ns": "ns",
    "pct": "%",
    "per_s": "1/s",
    "ratio": "ratio",
    "s": "s",
}
"""How the name of a column ends → its unit."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its name, what one row is, and its columns in order."""

    name: str
    doc: str
    columns: Mapping[str, Column]

    def unit(self, column: str) -> str:
        """Return the unit of a column of numbers; empty for counts, identifiers and texts."""
        if not any(kind in self.columns[column].dtype for kind in ("Int", "Float")):
            return ""
        words = column.split("_")
        endings = ("_".join(words[start:]) for start in range(len(words)))
        return next((_UNITS[ending] for ending in endings if ending in _UNITS), "")

    def empty(self) -> pl.DataFrame:
        """Return the table with no rows."""
        return _empty(tuple((name, column.dtype) for name, column in self.columns.items())).clone()

    def frame(self, columns: Mapping[str, pl.Series | Sequence[object]]) -> pl.DataFrame:
        """Return a table of `columns`, each as long as the others; what is absent becomes null."""
        height = len(next(iter(columns.values())))
        series = []
        for name, column in self.columns.items():
            kind, values = column.type, columns.get(name)
            if values is None:
                series.append(pl.Series(name, [None], dtype=kind).new_from_index(0, height))
            elif isinstance(values, pl.Series):
                of_kind = values if values.dtype == kind else values.cast(kind)
                series.append(of_kind if of_kind.name == name else of_kind.alias(name))
            else:
                series.append(pl.Series(name, values, dtype=kind))
        return pl.DataFrame(series)

    def concat(self, parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """Return the rows of all `parts`, which follow this schema."""
        nonempty = [part for part in parts if part.height]
        return pl.concat(nonempty) if nonempty else self.empty()


def keep_rows(table: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """Return the rows of a table that a column of booleans marks.

    `DataFrame.filter` makes a query of it, which takes longer than the work on all but large tables.
    """
    return pl.DataFrame([column.filter(mask) for column in table.iter_columns()])


KEYS: Mapping[str, Column] = MappingProxyType(
    {
        "trace": Column(
            "Int64", "number of the trace in the run, in order of path; a further device counts on"
        ),
        "rank": Column("Int64", "rank of the trace; null if unknown"),
        "iteration": Column("Int64", "recorded window, where the path carries one; else null"),
    }
)
"""Columns that tables of single traces carry beside their own once they are put together."""


def declared(name: str, doc: str, /, **columns: tuple[str, str]) -> Table:
    """Return a table of these columns, each given as (type, meaning)."""
    return Table(name, doc, MappingProxyType({key: Column(*spec) for key, spec in columns.items()}))
