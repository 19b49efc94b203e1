"""Interface to the reader in C: gives it pieces of a trace and takes the rows.

Keys, categories and columns of each kind of row are derived from `events`, so that both ways of reading know
the same words.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.lazy_imports import pl
from ccl_bench.trace.formats.kineto import tables
from ccl_bench.trace.formats.kineto.communication import CALL_KINDS, CALL_NAMES
from ccl_bench.trace.formats.kineto.document import decoder_for
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    HEADS,
    ROWS,
    TAILS,
    UNSORTED,
    UNUSED_CATEGORIES,
    Args,
    Event,
    Number,
)
from ccl_bench.trace.native.library import load_library, taken_table, taken_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccl_bench.trace.formats.kineto.document import Decoder


class Word(ctypes.Structure):
    """`Word` of rows.h."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_int32),
        ("role", ctypes.c_int32),
        ("slot", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("tables", ctypes.c_int32 * 3),
        ("rule", ctypes.c_int32),
    )


FUNCTIONS: dict[str, tuple[object, ...]] = {
    "rows_open": (ctypes.c_void_p, ctypes.POINTER(Word), ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32),
    "rows_close": (None, ctypes.c_void_p),
    "rows_feed": (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int32),
    "rows_calls": (ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))),
    "rows_events": (ctypes.c_int64, ctypes.c_void_p),
    "rows_twice": (ctypes.c_int64, ctypes.c_void_p),
    "rows_take": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    "rows_texts": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
}
"""Functions of the library, each with the types of its result and its arguments."""


IGNORED = "ignored"
"""The rows that hold the category of each event of an unknown one."""

_OLD = "external_id_old"

_OPERATOR = (
    *("ts", "dur", "pid", "tid", "name", "external_id", _OLD),
    *("record_function_id", "sequence_number", "forward_thread"),
)

COLUMNS = {
    "kernels": (
        *("ts", "dur", "name", "device", "stream", "correlation", "external_id", _OLD, "collective"),
        *("blocks_per_sm", "warps_per_sm", "occupancy", "grid", "block", "registers", "shared_memory"),
    ),
    "memcpy": (
        *("ts", "dur", "name", "cat", "device", "stream", "correlation", "external_id", _OLD, "bytes"),
    ),
    "cpu_ops": _OPERATOR,
    UNSORTED: _OPERATOR,
    "launches": ("ts", "dur", "pid", "tid", "name", "correlation", "external_id", _OLD),
    "annotations": ("ts", "dur", "pid", "tid", "name", "cat", "external_id", _OLD),
    TAILS: ("id", "tid", "ts"),
    HEADS: ("id", "tid", "ts"),
    IGNORED: ("cat",),
}
"""The kinds of rows and the fields of `Event` and `Args` in them; the last takes unknown categories."""

TEXTS = frozenset({"name", "cat", "collective"})
"""Fields that are handed over as numbers of texts."""

_TIMES = frozenset({"ts", "dur"})
_REALS = frozenset({"blocks_per_sm", "warps_per_sm", "occupancy"})
_PRODUCTS = frozenset({"grid", "block"})
_WHOLES = frozenset().union(*COLUMNS.values()) - TEXTS - _TIMES - _REALS - _PRODUCTS

_FIRST_SLOTS = ("ph", "cat", "name", "collective")
"""Fields whose place is fixed in rows.h."""


class _Role(IntEnum):
    EVENT_KEY = 0
    ARGUMENT_KEY = 1
    CATEGORY = 2
    CALL_PREFIX = 3


class _Kind(IntEnum):
    TEXT = 0
    TEXT_OR_NULL = 1
    WHOLE = 2
    REAL = 3
    TIME = 4
    PRODUCT = 5
    SCALAR = 6
    LIST = 7
    ANY = 8
    ARGUMENTS = 9


_RULES = {None: 0, "name": 1, "collective": 2}

_BY_TYPE: dict[object, _Kind] = {
    str: _Kind.TEXT,
    str | None: _Kind.TEXT_OR_NULL,
    Number: _Kind.SCALAR,
    list[Number] | str | None: _Kind.LIST,
    msgspec.Raw: _Kind.ANY,
    Args | None: _Kind.ARGUMENTS,
}

_BY_NAME = {
    **dict.fromkeys(_WHOLES, _Kind.WHOLE),
    **dict.fromkeys(_REALS, _Kind.REAL),
    **dict.fromkeys(_TIMES, _Kind.TIME),
    **dict.fromkeys(_PRODUCTS, _Kind.PRODUCT),
}


@cache
def _slots() -> dict[str, int]:
    fields = [*_FIRST_SLOTS, *Event.__struct_fields__, *Args.__struct_fields__]
    return {name: slot for slot, name in enumerate(dict.fromkeys(fields))}


def _key_words(struct: type[msgspec.Struct], role: _Role) -> Iterator[Word]:
    for field in msgspec.structs.fields(struct):
        text = field.encode_name.encode()
        kind = _BY_NAME[field.name] if field.name in _BY_NAME else _BY_TYPE[field.type]
        yield Word(text, len(text), role, _slots()[field.name], kind)


def _category_word(category: str, kind: str | None) -> Word:
    tables = list(COLUMNS)
    complete = tables.index(ROWS[kind]) if kind in ROWS else -1
    ends = [tables.index(name) if kind == "arrow" else -1 for name in (TAILS, HEADS)]
    text, rule = category.encode(), _RULES[CALL_KINDS.get(kind or "")]
    return Word(text, len(text), _Role.CATEGORY, tables=(complete, *ends), rule=rule)


@cache
def native_words() -> ctypes.Array[Word]:
    """Return every word that the native reader has to know."""
    words = [*_key_words(Event, _Role.EVENT_KEY), *_key_words(Args, _Role.ARGUMENT_KEY)]
    kinds: dict[str, str | None] = {**CATEGORIES, **dict.fromkeys(UNUSED_CATEGORIES)}
    words += [_category_word(category, kind) for category, kind in kinds.items()]
    prefixes = [name.encode() for name in (*CALL_NAMES, *tables.PRODUCT_NAMES)]
    words += [Word(text, len(text), _Role.CALL_PREFIX) for text in prefixes]
    return (Word * len(words))(*words)


@cache
def native_tables() -> ctypes.Array[ctypes.c_int32]:
    """Return for each kind of rows how many columns it has, and their slots."""
    numbers = [n for names in COLUMNS.values() for n in (len(names), *(_slots()[name] for name in names))]
    return (ctypes.c_int32 * len(numbers))(*numbers)


_RENAMED = {
    "pid": "process",
    "tid": "thread",
    "occupancy": "occupancy_pct",
    "grid": "grid_blocks",
    "block": "block_threads",
    "shared_memory": "shared_memory_bytes",
}


class NativeRows:
    """The rows that the native reader made of one file."""

    def __init__(self, native: ctypes.CDLL, handle: int) -> None:
        self._native = native
        self._handle = handle
        self._has_rows = False
        self._decoder: Decoder | None = None

    def __del__(self) -> None:
        self._native.rows_close(self._handle)

    @property
    def events(self) -> int:
        """Number of events taken."""
        count: int = self._native.rows_events(self._handle)
        return count

    @property
    def ambiguous(self) -> int:
        """Number of events taken that state a key twice."""
        count: int = self._native.rows_twice(self._handle)
        return count

    def feed(self, text: bytes, *, must_end: bool) -> int | None:
        """Take the events of `text`, all or none; None if there is anything unusual in it.

        Otherwise returns where the text after the array of events begins.
        """
        end: int = self._native.rows_feed(self._handle, text, len(text), must_end)
        if end < 0:
            return None
        self._has_rows = True
        return end or len(text)

    def calls(self, text: bytes) -> list[Event]:
        """Return the events of `text` whose arguments matter: communication calls and matrix products.

        `text` is what was fed last.
        """
        places = ctypes.POINTER(ctypes.c_int64)()
        count = self._native.rows_calls(self._handle, ctypes.byref(places))
        parts = [text[places[2 * n] : places[2 * n + 1]] for n in range(count)]
        if not parts:
            return []
        together = b"[" + b",".join(parts) + b"]"
        self._decoder = decoder_for(self._decoder, together)
        return self._decoder.decode(together)

    def take(self) -> tuple[dict[str, pl.DataFrame], Counter[str]]:
        """Return the rows since the last call, and the number of events of each unknown category."""
        if not self._has_rows:
            return {}, Counter()
        self._has_rows = False
        texts = taken_texts(lambda *places: self._native.rows_texts(self._handle, *places))
        rows = {name: self._rows(number) for number, name in enumerate(COLUMNS)}
        counts = rows.pop(IGNORED).to_series().value_counts(name="count")
        ignored: Counter[str] = Counter()
        for number, count in counts.iter_rows():
            ignored["" if number is None else texts[number]] += count
        categories = texts.cast(pl.Categorical)
        frames = {name: _shaped(name, frame, categories) for name, frame in rows.items() if frame.height}
        return frames, ignored

    def _rows(self, number: int) -> pl.DataFrame:
        names = list(COLUMNS.values())[number]
        return taken_table(list(names), lambda *to: self._native.rows_take(self._handle, number, *to))


def _shaped(name: str, rows: pl.DataFrame, texts: pl.Series) -> pl.DataFrame:
    """Return rows of the native reader as `columns` makes them."""
    columns: dict[str, Any] = rows.to_dict()
    if name == "memcpy":
        names = columns.pop("name")
        columns["kind"] = _by_row(tables.copy_kind, texts, names, columns.pop("cat"))
        columns["is_pageable"] = _by_row(tables.is_pageable, texts, names).cast(pl.Boolean)
    if name == "annotations":
        columns["on_device"] = _by_row(tables.is_on_device, texts, columns.pop("cat"))
    columns |= {field: texts[columns[field].cast(pl.UInt32)] for field in TEXTS & columns.keys()}
    if name == "kernels":
        columns["collective"] = columns["collective"].cast(pl.String)
    if "external_id" in columns:
        old = columns.pop("external_id_old")
        if columns["external_id"].null_count() and old.null_count() < rows.height:
            columns["external_id"] = pl.select(pl.coalesce(columns["external_id"], old)).to_series()
    if "dur" not in columns:
        columns["dur"] = pl.Series([0], dtype=pl.Int64).new_from_index(0, rows.height)
    return pl.DataFrame([column.alias(_RENAMED.get(field, field)) for field, column in columns.items()])


def _by_row(function: Callable[..., object], texts: pl.Series, *fields: pl.Series) -> pl.Series:
    """Return the result of `function` for the texts of each row; each combination is computed once."""
    rows = list(zip(*(field.to_list() for field in fields), strict=True))
    results = {row: function(*(None if n is None else texts[n] for n in row)) for row in set(rows)}
    return pl.Series([results[row] for row in rows])


def native_rows() -> NativeRows | None:
    """Return a place for the rows of one file; None without the native reader."""
    if (native := load_library(FUNCTIONS)) is None:
        return None
    words, tables = native_words(), native_tables()
    handle = native.rows_open(words, len(words), tables, len(COLUMNS))
    return NativeRows(native, handle) if handle else None
