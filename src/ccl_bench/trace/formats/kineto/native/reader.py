"""Interface to the reader in C: gives it pieces of a trace and takes the rows.

Keys, categories and columns of each kind of row are derived from `events`, so that both ways of reading know
the same words.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from enum import IntEnum
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.base.lazy_imports import pl
from ccl_bench.trace.formats.kineto import tables
from ccl_bench.trace.formats.kineto.communication import CALL_KINDS, CALL_NAMES
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    HEADS,
    ROWS,
    TAILS,
    UNUSED_CATEGORIES,
    Args,
    Event,
    Number,
)
from ccl_bench.trace.native.library import load_library, taken_table, taken_texts

if TYPE_CHECKING:
    from collections.abc import Iterator


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

COLUMNS = tables.COLUMNS | {IGNORED: ("cat",)}
"""The kinds of rows and their fields; the last takes unknown categories."""

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
    **{field: _Kind.WHOLE for fields in COLUMNS.values() for field in fields if field not in tables.TEXTS},
    **dict.fromkeys(tables.REALS, _Kind.REAL),
    **dict.fromkeys(tables.TIMES, _Kind.TIME),
    **dict.fromkeys(tables.PRODUCTS, _Kind.PRODUCT),
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


@cache
def native_words() -> ctypes.Array[Word]:
    """Return every word that the native reader has to know."""
    words = [*_key_words(Event, _Role.EVENT_KEY), *_key_words(Args, _Role.ARGUMENT_KEY)]
    kinds: dict[str, str | None] = {**CATEGORIES, **dict.fromkeys(UNUSED_CATEGORIES)}
    numbers = {name: number for number, name in enumerate(COLUMNS)}
    for category, kind in kinds.items():
        by_phase = [numbers[ROWS[kind]] if kind in ROWS else -1]
        by_phase += [numbers[name] if kind == "arrow" else -1 for name in (TAILS, HEADS)]
        text, rule = category.encode(), _RULES[CALL_KINDS.get(kind or "")]
        words.append(Word(text, len(text), _Role.CATEGORY, tables=tuple(by_phase), rule=rule))
    prefixes = [name.encode() for name in (*CALL_NAMES, *tables.PRODUCT_NAMES)]
    words += [Word(text, len(text), _Role.CALL_PREFIX) for text in prefixes]
    return (Word * len(words))(*words)


@cache
def native_tables() -> ctypes.Array[ctypes.c_int32]:
    """Return for each kind of rows how many columns it has, and their slots."""
    numbers = [n for names in COLUMNS.values() for n in (len(names), *(_slots()[name] for name in names))]
    return (ctypes.c_int32 * len(numbers))(*numbers)


class NativeRows:
    """The rows that the native reader made of one file."""

    def __init__(self, native: ctypes.CDLL, handle: int) -> None:
        self._native = native
        self._handle = handle
        self._has_rows = False

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

    def calls(self, text: bytes) -> bytes:
        """Return the events of `text` whose arguments matter: communication calls and matrix products.

        `text` is what was fed last. The result is JSON, empty if there are none.
        """
        places = ctypes.POINTER(ctypes.c_int64)()
        count = self._native.rows_calls(self._handle, ctypes.byref(places))
        parts = [text[places[2 * n] : places[2 * n + 1]] for n in range(count)]
        return b"[" + b",".join(parts) + b"]" if parts else b""

    def take(self) -> tuple[dict[str, pl.DataFrame], Counter[str]]:
        """Return the rows since the last call, and the number of events of each unknown category."""
        ignored: Counter[str] = Counter()
        rows: dict[str, pl.DataFrame] = {}
        if not self._has_rows:
            return rows, ignored
        self._has_rows = False
        texts = taken_texts(lambda *places: self._native.rows_texts(self._handle, *places))
        names = texts.cast(pl.Categorical)
        for number, (kind, fields) in enumerate(COLUMNS.items()):
            frame = taken_table([*fields], partial(self._native.rows_take, self._handle, number))
            if kind == IGNORED:
                for text, count in frame.to_series().value_counts(name="count").iter_rows():
                    ignored["" if text is None else texts[text]] += count
            elif frame.height:
                columns = frame.to_dict()
                for field in tables.TEXTS & columns.keys():
                    columns[field] = (names if field in tables.NAMES else texts)[
                        columns[field].cast(pl.UInt32)
                    ]
                rows[kind] = tables.rows_of(kind, columns)
        return rows, ignored


def native_rows() -> NativeRows | None:
    """Return a place for the rows of one file; None without the native reader."""
    if (native := load_library(FUNCTIONS)) is None:
        return None
    words, tables = native_words(), native_tables()
    handle = native.rows_open(words, len(words), tables, len(COLUMNS))
    return NativeRows(native, handle) if handle else None
