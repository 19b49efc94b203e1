"""Operators that multiply matrices, with the sizes of their inputs where the profiler recorded shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import CATEGORIES, COMPLETE, NO_ARGS
from ccl_bench.trace.formats.kineto.tables import microseconds
from ccl_bench.trace.values import column_of, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw

    from ccl_bench.trace.formats.kineto.events import Event

_FACTORS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Operators of torch that multiply two matrices or two stacks of them → which input is the first factor."""

NAMES = tuple(_FACTORS)
"""How the names of CPU events begin that may multiply matrices."""

_MOST = 1 << 40
"""More rows than any matrix has."""


def is_product(event: Event) -> bool:
    """Whether an event is an operator that multiplies matrices."""
    return event.ph == COMPLETE and CATEGORIES.get(event.cat or "") == "cpu_op" and event.name in _FACTORS


def product(event: Event) -> dict[str, object]:
    """Return one product as a row; sizes are absent where the shapes were not recorded or do not fit."""
    arg, first = event.args or NO_ARGS, _FACTORS[event.name]
    row: dict[str, object] = {"ts": event.ts, "dur": event.dur, "name": event.name, "thread": event.tid}
    shapes, types = (_decoded(raw)[first : first + 2] for raw in (arg.input_dims, arg.input_type))
    if types and isinstance(types[0], str):
        row["dtype"] = types[0]
    return row | _sizes(shapes)


def _decoded(raw: Raw) -> list[Any]:
    try:
        value = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []


def _sizes(shapes: list[Any]) -> dict[str, object]:
    """Return the sizes of `[batch,] rows x inner` times `[batch,] inner x columns`."""
    if len(shapes) != 2 or not all(isinstance(shape, list) and len(shape) in (2, 3) for shape in shapes):
        return {}
    left, right = ([whole(side) for side in shape] for shape in shapes)
    if any(side is None or not 0 <= side < _MOST for side in (*left, *right)):
        return {}
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        return {}
    batch = left[0] if len(left) == 3 else 1
    return {"batch": batch, "rows": left[-2], "inner": left[-1], "columns": right[-1]}


def products(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Return the `products` rows of products, with times for `tables.absolute`."""
    columns = {
        name: column_of([row.get(name) for row in rows], column.type)
        for name, column in TABLES["products"].columns.items()
        if name not in {"start_ns", "end_ns"}
    }
    columns |= {name: microseconds([row[name] for row in rows]) for name in ("ts", "dur")}
    return pl.DataFrame([column.alias(name) for name, column in columns.items()])
