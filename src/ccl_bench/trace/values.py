"""Values of traces: the next bytes of a file, JSON values, and columns of numbers."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.storage import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

LARGEST = 2**63

LATEST_NS = 2**61
"""Times and durations beyond this (73 years) are no times: sums of a few of them would not fit 64 bits."""

_SURE_DIGITS = 19
"""A whole number of fewer digits fits a column."""

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What msgspec raises of damaged or deeply nested JSON."""


def json_value(text: str | bytes | msgspec.Raw) -> Any:
    """Return the value of JSON text; None if it cannot be read."""
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return None


def json_list(text: str | bytes | msgspec.Raw) -> list[Any]:
    """Return the list that JSON text is; empty if it is none."""
    value = json_value(text)
    return value if isinstance(value, list) else []


def item_at(items: Sequence[Any], index: int | None) -> Any:
    """Return an item of a list, None if it has no such place."""
    return items[index] if index is not None and -len(items) <= index < len(items) else None


def text_or_none(value: object) -> str | None:
    """Return `value` as text, None if there is nothing in it."""
    return None if value is None or value == "" else str(value)


def number(value: object) -> float | int | None:
    """Return `value` as a number that fits a column, or None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        exact = Decimal(value)
    except InvalidOperation:
        return None
    if not exact.is_finite() or abs(exact) >= LARGEST:
        return None
    return int(exact) if exact == int(exact) else float(exact)


def whole(value: object) -> int | None:
    """Return `value` as a whole number that fits a column, or None if it is not one."""
    if type(value) is int and -LARGEST < value < LARGEST:  # nearly always, and Decimal is slow
        return value
    if type(value) is str and value.isdecimal() and len(value) < _SURE_DIGITS:
        return int(value)
    result = number(value)
    return result if isinstance(result, int) else None


def integers(values: Sequence[object]) -> pl.Series:
    """Return a column of whole numbers; another value becomes null."""
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([whole(value) for value in values], dtype=pl.Int64)


def decimals(values: Sequence[object]) -> pl.Series:
    """Return a column of real numbers; another value becomes null."""
    try:
        return pl.Series(values, dtype=pl.Float64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([number(value) for value in values], dtype=pl.Float64, strict=False)


def column_of(values: Sequence[Any], kind: pl.DataType) -> pl.Series:
    """Return a column of a type; lists, which are slow to convert and mostly alike, one of each."""
    is_list = isinstance(kind, pl.List)
    distinct = {tuple(value) for value in values if value is not None} if is_list else ()
    if not distinct:
        return pl.Series(values, dtype=kind)
    places = {value: place for place, value in enumerate(distinct)}
    rows = [None if value is None else places[tuple(value)] for value in values]
    return pl.Series([list(value) for value in places], dtype=kind)[pl.Series(rows, dtype=pl.UInt32)]


def table_of(name: str, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return a raw table from its rows; what a row lacks is null."""
    table = TABLES[name]
    columns = {key: [row.get(key) for row in rows] for key in table.columns}
    return table.frame({key: column_of(columns[key], column.type) for key, column in table.columns.items()})


BLOCK_BYTES = 256 << 10
"""Bytes read at a time. What is made of one block fits in a core's cache and in memory that was used before:
blocks of 1 MB, which the system hands out anew each time, make the read of a small file a third slower."""


class Progress(Protocol):
    """How far a file was read."""

    size: int
    """Bytes read, after decompression."""
    broken_off: str
    """Why reading stopped before the end of the file, if it did."""


def next_block(stream: BinaryIO, progress: Progress, held_bytes: int) -> bytes:
    """Return the next bytes; a damaged compressed stream ends the file where it is damaged.

    As many as are `held` already without an end, if those are more: then what is held is searched again
    as often as it doubles, and not once for each block.
    """
    try:
        block = b"" if progress.broken_off else stream.read(max(BLOCK_BYTES, held_bytes))
    except DAMAGED as error:
        progress.broken_off = str(error) or type(error).__name__
        return b""
    progress.size += len(block)
    return block


FACTORS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Operators of torch that multiply two matrices or two stacks of them → which input is the first factor."""

_MOST_ROWS = 1 << 40
"""More rows than any matrix has."""


def matrix_sizes(shapes: list[Any]) -> dict[str, object]:
    """Return the sizes of `[batch,] rows x inner` times `[batch,] inner x columns`."""
    if len(shapes) != 2 or not all(isinstance(shape, list) and len(shape) in (2, 3) for shape in shapes):
        return {}
    left, right = ([whole(side) for side in shape] for shape in shapes)
    if any(side is None or not 0 <= side < _MOST_ROWS for side in (*left, *right)):
        return {}
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        return {}
    batch = left[0] if len(left) == 3 else 1
    return {"batch": batch, "rows": left[-2], "inner": left[-1], "columns": right[-1]}
