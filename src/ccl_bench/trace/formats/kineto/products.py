"""Operators that multiply matrices, with the sizes of their inputs where the profiler recorded shapes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import CATEGORIES, COMPLETE, NO_ARGS
from ccl_bench.trace.formats.kineto.tables import microseconds
from ccl_bench.trace.values import FACTORS, column_of, matrix_sizes, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.trace.formats.kineto.events import Event

NAMES = tuple(FACTORS)
"""How the names of CPU events begin that may multiply matrices."""


def is_product(event: Event) -> bool:
    """Whether an event is an operator that multiplies matrices."""
    return event.ph == COMPLETE and CATEGORIES.get(event.cat or "") == "cpu_op" and event.name in FACTORS


def product(event: Event) -> dict[str, object]:
    """Return one product as a row; sizes are absent where the shapes were not recorded or do not fit."""
    arg = event.args or NO_ARGS
    shapes, types = bytes(arg.input_dims), bytes(arg.input_type)
    known = _inputs if len(shapes) + len(types) <= _SHORT_BYTES else _inputs.__wrapped__
    row = {"ts": event.ts, "dur": event.dur, "name": event.name, "thread": whole(event.tid)}
    return row | known(shapes, types, FACTORS[event.name])


_SHORT_BYTES = 512


@lru_cache(maxsize=1024)  # layers repeat the shapes of their products
def _inputs(shapes: bytes, types: bytes, first: int) -> dict[str, object]:
    """Return sizes and element type of the factors, the first of which is the input of this number."""
    kinds = _decoded(types)[first : first + 1]
    dtype = {"dtype": kinds[0]} if kinds and isinstance(kinds[0], str) else {}
    return dtype | matrix_sizes(_decoded(shapes)[first : first + 2])


def _decoded(text: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
