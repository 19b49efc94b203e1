"""Operators that multiply matrices, with the sizes of their inputs where the profiler recorded shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import CATEGORIES, COMPLETE, NO_ARGS
from ccl_bench.trace.formats.kineto.tables import microseconds
from ccl_bench.trace.values import FACTORS, column_of, matrix_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw

    from ccl_bench.trace.formats.kineto.events import Event

NAMES = tuple(FACTORS)
"""How the names of CPU events begin that may multiply matrices."""


def is_product(event: Event) -> bool:
    """Whether an event is an operator that multiplies matrices."""
    return event.ph == COMPLETE and CATEGORIES.get(event.cat or "") == "cpu_op" and event.name in FACTORS


def product(event: Event) -> dict[str, object]:
    """Return one product as a row; sizes are absent where the shapes were not recorded or do not fit."""
    arg, first = event.args or NO_ARGS, FACTORS[event.name]
    row: dict[str, object] = {"ts": event.ts, "dur": event.dur, "name": event.name, "thread": event.tid}
    shapes, types = (_decoded(raw)[first : first + 2] for raw in (arg.input_dims, arg.input_type))
    if types and isinstance(types[0], str):
        row["dtype"] = types[0]
    return row | matrix_sizes(shapes)


def _decoded(raw: Raw) -> list[Any]:
    try:
        value = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []


def products(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Return the `products` rows of products, with times for `tables.absolute`."""
    columns = {
        name: column_of([row.get(name) for row in rows], column.type)
        for name, column in TABLES["products"].columns.items()
        if name not in {"start_ns", "end_ns"}
    }
    columns |= {name: microseconds([row[name] for row in rows]) for name in ("ts", "dur")}
    return pl.DataFrame([column.alias(name) for name, column in columns.items()])
