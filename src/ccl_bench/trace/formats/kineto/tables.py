"""Rows of tables from Kineto events: times in nanoseconds, and recorded sizes of matrix products."""

from __future__ import annotations

import contextlib
import math
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import CATEGORIES, COMPLETE, NO_ARGS, ROWS, UNSORTED, is_range
from ccl_bench.trace.values import (
    FACTORS,
    LARGEST,
    LATEST_NS,
    column_of,
    decimals,
    integers,
    matrix_sizes,
    number,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.trace.formats.kineto.events import Args, Event

SHORTEST_US = 0.0005
"""A time that is not 0 and rounds to 0 ns is damage: nothing counts picoseconds."""


def microseconds(values: Sequence[object]) -> pl.Series:
    """Return times as they were decoded: decimal microseconds in doubles, or exact nanoseconds.

    `absolute` distinguishes the two by their type.
    """
    first = next((value for value in values if value is not None), None)
    if not isinstance(first, Decimal):
        try:
            return pl.Series(values, dtype=pl.Float64, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return pl.Series([_nanoseconds(value) for value in values], dtype=pl.Int64)


def _exactly(times: pl.Series) -> pl.Series:
    """Return a column of decimal microseconds as whole nanoseconds, without losing a digit.

    A double holds the microseconds exactly enough below 2**43 (Kineto's `baseTimeNanoseconds`
    keeps them there) and whole microseconds up to 2**53. Splitting off the whole part before
    scaling keeps both exact. Anything finer was decoded as `Decimal`.
    """
    latest = LATEST_NS / 1000
    is_long = (times == 0) | (times >= SHORTEST_US) | (times <= -SHORTEST_US)
    is_time = is_long & (times < latest) & (times > -latest)
    micro = times if is_time.all() else times.zip_with(is_time, times.clear(n=times.len()))
    whole = micro.cast(pl.Int64)
    whole -= (micro < whole).cast(pl.Int64)  # the cast cuts off, which of negative times is no floor
    return whole * 1000 + ((micro - whole) * 1000).round().cast(pl.Int64)


def absolute(rows: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """Return rows with `ts` and `dur`, as `microseconds` makes them, as rows with `start_ns` and `end_ns`."""
    columns = rows.to_dict()
    times = (columns.pop(name) for name in ("ts", "dur"))
    start, duration = (_exactly(time) if time.dtype == pl.Float64 else time for time in times)
    start += base_ns
    end = (start + duration).alias("end_ns")
    return pl.DataFrame([*columns.values(), start.alias("start_ns"), end])


def _nanoseconds(value: object) -> int | None:
    try:
        exact = (value if isinstance(value, Decimal) else Decimal(str(value))).scaleb(3)
    except (ArithmeticError, ValueError):
        return None
    if not exact.is_finite() or abs(exact) >= LATEST_NS or 0 < abs(exact) < SHORTEST_US * 1000:
        return None
    return int(exact.to_integral_value())


def times(events: Sequence[Event]) -> dict[str, pl.Series]:
    """Return the start and duration of each event, for `absolute`."""
    return {
        "ts": microseconds([event.ts for event in events]),
        "dur": microseconds([event.dur for event in events]),
    }


def names(events: Sequence[Event]) -> pl.Series:
    """Return the names of events as categories."""
    return pl.Series([event.name for event in events], dtype=pl.Categorical)


def _external_ids(args: Sequence[Args]) -> pl.Series:
    ids = integers([arg.external_id for arg in args])
    if ids.null_count() == 0 or all(arg.external_id_old is None for arg in args):
        return ids
    return pl.select(pl.coalesce(ids, integers([arg.external_id_old for arg in args]))).to_series()


def _product(shape: object) -> int | None:
    """Return the number of blocks or threads of a `[x, y, z]` launch shape."""
    if isinstance(shape, str):
        shape = [part for part in shape.strip("[]() ").split(",") if part.strip()]
    if not isinstance(shape, list) or not shape:
        return None
    sides = [side if type(side) is int else number(side) for side in shape]
    product = math.prod(side for side in sides if side is not None)
    return None if None in sides or abs(product) >= LARGEST else int(product)


def _products(shapes: Sequence[Any]) -> pl.Series:
    """Return a column of how many blocks or threads launch shapes have."""
    if all(shapes):
        with contextlib.suppress(TypeError, OverflowError, pl.exceptions.PolarsError):
            return pl.Series([math.prod(shape) for shape in shapes], dtype=pl.Int64, strict=True)
    return pl.Series([_product(shape) for shape in shapes], dtype=pl.Int64)


def kernels(events: Sequence[Event], args: Sequence[Args]) -> pl.DataFrame:
    """Return the `kernels` rows of kernel events."""
    return pl.DataFrame(
        times(events)
        | {
            "name": names(events),
            "device": integers([arg.device for arg in args]),
            "stream": integers([arg.stream for arg in args]),
            "correlation": integers([arg.correlation for arg in args]),
            "external_id": _external_ids(args),
            "collective": pl.Series([arg.collective for arg in args], dtype=pl.String),
            "blocks_per_sm": decimals([arg.blocks_per_sm for arg in args]),
            "warps_per_sm": decimals([arg.warps_per_sm for arg in args]),
            "occupancy_pct": decimals([arg.occupancy for arg in args]),
            "grid_blocks": _products([arg.grid for arg in args]),
            "block_threads": _products([arg.block for arg in args]),
            "registers": integers([arg.registers for arg in args]),
            "shared_memory_bytes": integers([arg.shared_memory for arg in args]),
        }
    )


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


def copy_kind(name: str, category: str | None) -> str:
    """Return the direction of a copy or memory set, from its name."""
    fallback = "memset" if CATEGORIES.get(category or "") == "memset" else "other"
    return next((kind for spelling, kind in _COPY_KINDS.items() if spelling in name), fallback)


def is_pageable(name: str) -> bool | None:
    """Whether the memory of the host is pageable, from the name of a copy; None if it does not say."""
    return "Pageable" in name if "Pageable" in name or "Pinned" in name else None


def memcpy(events: Sequence[Event], args: Sequence[Args]) -> pl.DataFrame:
    """Return the `memcpy` rows of copies and memory sets."""
    return pl.DataFrame(
        times(events)
        | {
            "kind": pl.Series([copy_kind(event.name, event.cat) for event in events], dtype=pl.String),
            "is_pageable": pl.Series([is_pageable(event.name) for event in events], dtype=pl.Boolean),
            "device": integers([arg.device for arg in args]),
            "stream": integers([arg.stream for arg in args]),
            "correlation": integers([arg.correlation for arg in args]),
            "external_id": _external_ids(args),
            "bytes": integers([arg.bytes for arg in args]),
        }
    )


def _thread(events: Sequence[Event]) -> dict[str, pl.Series]:
    return {
        "process": integers([event.pid for event in events]),
        "thread": integers([event.tid for event in events]),
    }


def cpu_ops(events: Sequence[Event], args: Sequence[Args]) -> pl.DataFrame:
    """Return the `cpu_ops` rows of operator events."""
    return pl.DataFrame(
        times(events)
        | _thread(events)
        | {
            "name": names(events),
            "external_id": _external_ids(args),
            "record_function_id": integers([arg.record_function_id for arg in args]),
            "sequence_number": integers([arg.sequence_number for arg in args]),
            "forward_thread": integers([arg.forward_thread for arg in args]),
        }
    )


def launches(events: Sequence[Event], args: Sequence[Args]) -> pl.DataFrame:
    """Return the `launches` rows of runtime and driver calls."""
    return pl.DataFrame(
        times(events)
        | _thread(events)
        | {
            "name": names(events),
            "correlation": integers([arg.correlation for arg in args]),
            "external_id": _external_ids(args),
        }
    )


def is_on_device(category: str | None) -> bool:
    """Whether named ranges of a category lie on the device."""
    return CATEGORIES.get(category or "") == "device_annotation"


def named_ranges(events: Sequence[Event], args: Sequence[Args]) -> pl.DataFrame:
    """Return the `annotations` rows of named ranges."""
    return pl.DataFrame(
        times(events)
        | _thread(events)
        | {
            "name": names(events),
            "on_device": pl.Series([is_on_device(event.cat) for event in events], dtype=pl.Boolean),
            "external_id": _external_ids(args),
        }
    )


def sorted_out(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of operators and ranges together, as `cpu_ops` makes them, by their table."""
    distinct = rows["name"].unique()
    names = distinct.filter([is_range(name) for name in distinct.cast(pl.String)])
    marks = rows["name"].is_in(names.implode())
    columns = ("ts", "dur", "process", "thread", "name", "external_id")
    ranges = rows.filter(marks).select(*columns).with_columns(on_device=pl.lit(value=False))
    return {"cpu_ops": rows.filter(~marks), "annotations": ranges}


def arrow_ends(events: Sequence[Event], _: Sequence[Args]) -> pl.DataFrame:
    """Return one end of each `fwdbwd` arrow: its id, thread and time."""
    return pl.DataFrame(
        {
            "id": integers([event.id for event in events]),
            "thread": integers([event.tid for event in events]),
            "ts": microseconds([event.ts for event in events]),
            "dur": pl.Series([0.0] * len(events), dtype=pl.Float64),
        }
    )


def autograd_links(tails: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Return the `autograd_links` rows of arrow ends with absolute times, joined by their id."""
    return _ends(tails, "forward").join(_ends(heads, "backward"), on="id", maintain_order="left")


def _ends(rows: pl.DataFrame, side: str) -> pl.DataFrame:
    """Return one end of each arrow, the first of each id, with columns named after the side."""
    ids, starts, threads = (rows[name] for name in ("id", "start_ns", "thread"))
    ends = pl.DataFrame([ids, starts.alias(f"{side}_ns"), threads.alias(f"{side}_thread")])
    if ids.n_unique() == ids.len():
        return ends
    return ends.unique("id", keep="first", maintain_order=True)


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
    """Return the `products` rows of products, with times for `absolute`."""
    columns = {
        name: column_of([row.get(name) for row in rows], column.type)
        for name, column in TABLES["products"].columns.items()
        if name not in {"start_ns", "end_ns"}
    }
    columns |= {name: microseconds([row[name] for row in rows]) for name in ("ts", "dur")}
    return pl.DataFrame([column.alias(name) for name, column in columns.items()])
