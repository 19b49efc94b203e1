"""Rows of tables from the fields of Kineto events, and recorded sizes of matrix products."""

from __future__ import annotations

import contextlib
import math
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    COMPLETE,
    HEADS,
    NO_ARGS,
    ROWS,
    TAILS,
    UNSORTED,
    Event,
    is_range,
)
from ccl_bench.trace.values import (
    FACTORS,
    LARGEST,
    LATEST_NS,
    column_of,
    decimals,
    integers,
    json_list,
    matrix_sizes,
    number,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPERATOR = (
    *("ts", "dur", "pid", "tid", "name", "external_id", "external_id_old"),
    *("record_function_id", "sequence_number", "forward_thread"),
)

COLUMNS = {
    "kernels": (
        *("ts", "dur", "name", "device", "stream", "correlation", "external_id", "external_id_old"),
        *("collective", "blocks_per_sm", "warps_per_sm", "occupancy", "grid", "block", "registers"),
        "shared_memory",
    ),
    "memcpy": (
        *("ts", "dur", "name", "cat", "device", "stream", "correlation", "external_id", "external_id_old"),
        "bytes",
    ),
    "cpu_ops": _OPERATOR,
    UNSORTED: _OPERATOR,
    "launches": ("ts", "dur", "pid", "tid", "name", "correlation", "external_id", "external_id_old"),
    "annotations": ("ts", "dur", "pid", "tid", "name", "cat", "external_id", "external_id_old"),
    TAILS: ("id", "tid", "ts"),
    HEADS: ("id", "tid", "ts"),
}
"""The kinds of rows and the fields of `Event` and `Args` in them."""

NAMES = frozenset({"name", "cat"})
"""Fields with few different texts."""
TEXTS = NAMES | {"collective"}
TIMES = frozenset({"ts", "dur"})
REALS = frozenset({"blocks_per_sm", "warps_per_sm", "occupancy"})
PRODUCTS = frozenset({"grid", "block"})
"""Launch shapes, of which the number of blocks or threads is kept."""

SHORTEST_US = 0.0005
"""A time that is not 0 and rounds to 0 ns is damage: nothing counts picoseconds."""


def nanoseconds(values: Sequence[object]) -> pl.Series:
    """Return times that were decoded in decimal microseconds as whole ns; null where they are none.

    A double holds the microseconds exactly enough below 2**43 (Kineto's `baseTimeNanoseconds`
    keeps them there) and whole microseconds up to 2**53. Splitting off the whole part before
    scaling keeps both exact. Anything finer was decoded as `Decimal`.
    """
    first = next((value for value in values if value is not None), None)
    try:
        micro = None if isinstance(first, Decimal) else pl.Series(values, dtype=pl.Float64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        micro = None
    if micro is None:
        return pl.Series([_nanoseconds(value) for value in values], dtype=pl.Int64)
    least, greatest = cast("tuple[float | None, float]", (micro.min(), micro.max()))
    if least is None or least < SHORTEST_US or greatest >= LATEST_NS / 1000:  # JSON has no NaN
        is_long = (micro == 0) | (micro >= SHORTEST_US) | (micro <= -SHORTEST_US)
        is_time = is_long & (micro < LATEST_NS / 1000) & (micro > -LATEST_NS / 1000)
        micro = micro.zip_with(is_time, micro.clear(n=micro.len()))
    whole_us = micro.cast(pl.Int64)
    whole_us -= (micro < whole_us).cast(pl.Int64)  # the cast cuts off, which of negative times is no floor
    return whole_us * 1000 + ((micro - whole_us) * 1000).round().cast(pl.Int64)


def _nanoseconds(value: object) -> int | None:
    try:
        exact = (value if isinstance(value, Decimal) else Decimal(str(value))).scaleb(3)
    except (ArithmeticError, ValueError):
        return None
    if not exact.is_finite() or abs(exact) >= LATEST_NS or 0 < abs(exact) < SHORTEST_US * 1000:
        return None
    return int(exact.to_integral_value())


def _products(shapes: Sequence[Any]) -> pl.Series:
    """Return the number of blocks or threads of `[x, y, z]` launch shapes; null where one is none."""
    if all(shapes):  # of whole numbers, as nearly always
        with contextlib.suppress(TypeError, OverflowError, pl.exceptions.PolarsError):
            return pl.Series([math.prod(shape) for shape in shapes], dtype=pl.Int64, strict=True)
    products: list[int | None] = []
    for shape in shapes:
        if isinstance(shape, str):
            shape = [part for part in shape.strip("[]() ").split(",") if part.strip()]
        sides = [number(side) for side in shape] if isinstance(shape, list) else []
        product = math.prod(side for side in sides if side is not None)
        is_known = bool(sides) and None not in sides and abs(product) < LARGEST
        products.append(int(product) if is_known else None)
    return pl.Series(products, dtype=pl.Int64)


def columns_of(kind: str, events: Sequence[Event]) -> dict[str, pl.Series]:
    """Return the columns of decoded events, as C fills them: a value that is none of its field's is null."""
    args = [event.args or NO_ARGS for event in events]
    columns: dict[str, pl.Series] = {}
    for field in COLUMNS[kind]:
        values = [*map(attrgetter(field), events if field in Event.__struct_fields__ else args)]
        if field in TEXTS:
            columns[field] = pl.Series(values, dtype=pl.Categorical if field in NAMES else pl.String)
        elif field in TIMES:
            columns[field] = nanoseconds(values)
        elif field in PRODUCTS:
            columns[field] = _products(values)
        else:
            columns[field] = decimals(values) if field in REALS else integers(values)
    return columns


_RENAMED = {
    "pid": "process",
    "tid": "thread",
    "occupancy": "occupancy_pct",
    "grid": "grid_blocks",
    "block": "block_threads",
    "shared_memory": "shared_memory_bytes",
}

_COPY_KINDS = {
    spelling: kind
    for kind, in_words in (
        ("HtoD", "HostToDevice"),
        ("DtoH", "DeviceToHost"),
        ("DtoD", "DeviceToDevice"),
        ("PtoP", "PeerToPeer"),
        ("HtoH", "HostToHost"),
    )
    for spelling in (kind, in_words)
}
"""CUPTI writes `Memcpy HtoD (...)`, roctracer `CopyHostToDevice`."""


def rows_of(kind: str, columns: dict[str, pl.Series]) -> pl.DataFrame:
    """Return the rows of a kind from the columns of its fields, which are used up."""
    if kind == "memcpy":
        pairs = [*zip(columns.pop("name").to_list(), columns.pop("cat").to_list(), strict=True)]
        kinds: dict[tuple[str, str], str] = {}
        is_pageable: dict[tuple[str, str], bool | None] = {}
        for name, category in set(pairs):
            fallback = "memset" if CATEGORIES.get(category) == "memset" else "other"
            in_name = (copy for spelling, copy in _COPY_KINDS.items() if spelling in name)
            kinds[name, category] = next(in_name, fallback)
            says = "Pageable" in name or "Pinned" in name
            is_pageable[name, category] = "Pageable" in name if says else None
        columns["kind"] = pl.Series([kinds[pair] for pair in pairs], dtype=pl.String)
        columns["is_pageable"] = pl.Series([is_pageable[pair] for pair in pairs], dtype=pl.Boolean)
    if kind == "annotations":
        categories = columns.pop("cat").to_list()
        on_device = [CATEGORIES.get(category) == "device_annotation" for category in categories]
        columns["on_device"] = pl.Series(on_device, dtype=pl.Boolean)
    if "external_id" in columns:
        old = columns.pop("external_id_old")
        if columns["external_id"].null_count() and old.null_count() < old.len():
            columns["external_id"] = pl.select(pl.coalesce(columns["external_id"], old)).to_series()
    if "dur" not in columns:  # an end of an arrow
        columns["dur"] = pl.Series([0], dtype=pl.Int64).new_from_index(0, columns["ts"].len())
    return pl.DataFrame([column.alias(_RENAMED.get(field, field)) for field, column in columns.items()])


def absolute(rows: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """Return rows with `ts` and `dur`, ns, as rows with `start_ns` and `end_ns`."""
    columns = rows.to_dict()
    start = (columns.pop("ts") + base_ns).alias("start_ns")
    end = (start + columns.pop("dur")).alias("end_ns")
    return pl.DataFrame([*columns.values(), start, end])


def sorted_out(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of operators and ranges together, as `cpu_ops` makes them, by their table."""
    distinct = rows["name"].unique()
    names = distinct.filter([is_range(name) for name in distinct.cast(pl.String)])
    marks = rows["name"].is_in(names.implode())
    columns = ("ts", "dur", "process", "thread", "name", "external_id")
    ranges = rows.filter(marks).select(*columns).with_columns(on_device=pl.lit(value=False))
    return {"cpu_ops": rows.filter(~marks), "annotations": ranges}


def autograd_links(tails: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Return the `autograd_links` rows of arrow ends with absolute times, joined by their id.

    The first end with an id counts.
    """
    sides = []
    for rows, side in ((tails, "forward"), (heads, "backward")):
        starts, threads = rows["start_ns"].alias(f"{side}_ns"), rows["thread"].alias(f"{side}_thread")
        ends = pl.DataFrame([rows["id"], starts, threads])
        is_distinct = rows["id"].n_unique() == rows.height
        sides.append(ends if is_distinct else ends.unique("id", keep="first", maintain_order=True))
    return sides[0].join(sides[1], on="id", maintain_order="left")


PRODUCT_NAMES = tuple(FACTORS)
"""How the names of CPU events begin that may multiply matrices."""


def is_product(event: Event) -> bool:
    """Whether an event is an operator that multiplies matrices."""
    table = ROWS.get(CATEGORIES.get(event.cat or "", ""))
    return event.ph == COMPLETE and table in {"cpu_ops", UNSORTED} and event.name in FACTORS


def product(event: Event) -> dict[str, object]:
    """Return one product as a row; sizes are absent where the shapes were not recorded or do not fit."""
    arg = event.args or NO_ARGS
    shapes, types = bytes(arg.input_dims), bytes(arg.input_type)
    inputs_of = _inputs if len(shapes) + len(types) <= _SHORT_BYTES else _inputs.__wrapped__
    row = {"ts": event.ts, "dur": event.dur, "name": event.name, "thread": whole(event.tid)}
    return row | inputs_of(shapes, types, FACTORS[event.name])


_SHORT_BYTES = 512


@lru_cache(maxsize=1024)  # layers repeat the shapes of their products
def _inputs(shapes: bytes, types: bytes, first: int) -> dict[str, object]:
    """Return sizes and element type of the factors, the first of which is the input of this number."""
    kinds = json_list(types)[first : first + 1]
    dtype = {"dtype": kinds[0]} if kinds and isinstance(kinds[0], str) else {}
    return dtype | matrix_sizes(json_list(shapes)[first : first + 2])


def products(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Return the `products` rows of products, with times for `absolute`."""
    columns = {
        name: column_of([row.get(name) for row in rows], column.type)
        for name, column in TABLES["products"].columns.items()
        if name not in {"start_ns", "end_ns"}
    }
    columns |= {name: nanoseconds([row[name] for row in rows]) for name in ("ts", "dur")}
    return pl.DataFrame([column.alias(name) for name, column in columns.items()])
