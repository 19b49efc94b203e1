"""JSON traces in pieces: cutting the array of objects, and turning numbers into columns.

The file is `{head "key": [ object, object, ... ] tail}`, of which formats say how the array begins and where
one of its objects ends: the text between two of them cannot occur in a JSON string, because its quotes
would be escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Protocol

from ccl_bench.base.lazy_imports import pl
from ccl_bench.storage import DAMAGED

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

LARGEST = 2**63


LATEST_NS = 2**61
"""Times and durations beyond this (73 years) are no times: sums of a few of them would not fit 64 bits."""


_SURE_DIGITS = 19
"""A whole number of fewer digits fits a column."""


def number(value: object) -> float | int | None:
    """Return `value` as a number that fits a column, or None if it is not one."""
    try:
        exact = Decimal(value) if isinstance(value, int | float | str | Decimal) else None
    except InvalidOperation:
        return None
    if exact is None or not exact.is_finite() or abs(exact) >= LARGEST:
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
    if not isinstance(kind, pl.List):
        return pl.Series(values, dtype=kind)
    distinct = {tuple(value) for value in values if value is not None}
    places = {value: place for place, value in enumerate(distinct)}
    rows = [None if value is None else places[tuple(value)] for value in values]
    return pl.Series([list(value) for value in places], dtype=kind)[pl.Series(rows, dtype=pl.UInt32)]


BLOCK_BYTES = 256 << 10
"""Bytes read at a time. What is made of one block fits in a core's cache and in memory that was used before:
blocks of 1 MB, which the system hands out anew each time, make the read of a small file a third slower."""


class Reading(Protocol):
    """The outcome of reading a file."""

    size: int
    """Bytes read, after decompression."""
    broken_off: str
    """Why reading stopped before the end of the file, if it did."""


def next_block(stream: BinaryIO, reading: Reading, held_bytes: int) -> bytes:
    """Return the next bytes; a damaged compressed stream ends the file where it is damaged.

    As many as are `held` already without an end, if those are more: then what is held is searched again
    as often as it doubles, and not once for each block.
    """
    try:
        block = b"" if reading.broken_off else stream.read(max(BLOCK_BYTES, held_bytes))
    except DAMAGED as error:
        reading.broken_off = str(error) or type(error).__name__
        return b""
    reading.size += len(block)
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


OBJECT_LIMIT = 64 << 20
"""Bytes without the end of an object after which a file is given up as damaged."""

_CUTS_TRIED = 2
"""Separators looked at from the end of a buffer, which may lie just behind the last of them."""

_LAST_BYTES = 8 << 10
"""Bytes at the end of a buffer in which the last object mostly begins: only without one is more looked at."""

_BETWEEN = b" \t\r\n,"


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """How the files of a format hold their array."""

    start: re.Pattern[bytes]
    """Its key and its opening bracket."""
    boundary: re.Pattern[bytes]
    """From the `}` of one of its objects up to the next one."""
    item: str
    """What messages call an object, such as `event`."""
    head_limit: int = OBJECT_LIMIT
    """Bytes after which a file without the key has no array."""
    separators: tuple[bytes, ...] = ()
    """Where objects usually end, looked for first; `boundary` has the last word."""
    may_be_bare: bool = False
    """Whether the file may be the array alone."""


@dataclass(slots=True)
class Document:
    """Content of a file besides its array, and the outcome of reading it."""

    head: bytes = b""
    """Everything before the array."""
    tail: bytes = b""
    """Everything after the array; empty if the file ends inside it."""
    size: int = 0
    """Bytes read, after decompression."""
    found_array: bool = False
    """Whether the file has the array at all."""
    broken_off: str = ""
    """Why reading stopped before the end of the file, if it did."""


def array_pieces(stream: BinaryIO, document: Document, form: ArrayForm) -> Iterator[tuple[int, bytes]]:
    """Yield runs of whole objects with their offset in the file; the last one holds the tail.

    Fills `document` while it goes. Only one piece is in memory at a time, unless a single
    object is larger than that.
    """
    unfinished = _skip_head(stream, document, form)
    while document.found_array and (block := next_block(stream, document, len(unfinished))):
        buffer = unfinished + block if unfinished else block
        end = _cut(buffer, form)
        if end:
            yield document.size - len(buffer), buffer[:end]
            unfinished = buffer[end:].lstrip(_BETWEEN)
        elif len(buffer) > OBJECT_LIMIT:
            document.broken_off = f"no {form.item} ends within {OBJECT_LIMIT >> 20} MB"
            unfinished = b""
        else:
            unfinished = buffer
    if document.found_array:
        yield document.size - len(unfinished), unfinished


def _skip_head(stream: BinaryIO, document: Document, form: ArrayForm) -> bytes:
    """Read up to the first object, keep the text before it, and return the text from it on."""
    buffer = b""
    while len(buffer) < form.head_limit and (block := next_block(stream, document, len(buffer))):
        buffer += block
        if match := form.start.search(buffer):
            document.head, document.found_array = buffer[: match.start()], True
            return buffer[match.end() :]
        if form.may_be_bare and (stripped := buffer.lstrip()).startswith(b"["):
            document.found_array = True
            return stripped[1:]
    document.head = buffer
    return b""


def _cut(buffer: bytes, form: ArrayForm) -> int:
    """Return the position after the `}` of the last object that is surely whole, or 0.

    A writer that uses none of the usual separators must not make every search one of the whole buffer.
    """
    size = _LAST_BYTES
    while not (end := _cut_behind(buffer, max(0, len(buffer) - size), form)) and size < len(buffer):
        size *= 8
    return end


def _cut_behind(buffer: bytes, start: int, form: ArrayForm) -> int:
    """Return the cut by `_cut` in the text from `start` on, or 0."""
    for separator in form.separators:
        at = len(buffer)
        for _ in range(_CUTS_TRIED):
            if (at := buffer.rfind(separator, start, at)) < 0:
                break
            if form.boundary.match(buffer, end := at + separator.index(b"}")):
                return end + 1
    last = 0
    for match in form.boundary.finditer(buffer, start):
        last = match.start() + 1
    return last
