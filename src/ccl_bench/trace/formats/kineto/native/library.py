"""Load the compiled reader, and describe to it the keys, categories and columns of each kind of row.

All of it is derived from `events`, so that both ways of reading know the same words.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

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

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "CCL_BENCH_NATIVE"
"""Set to 0, the environment variable that leaves the native reader out."""

REVISION = 1
"""As in rows.h."""

LIBRARY_FILE = Path(__file__).with_name("librows.so")


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


_RESULTS = {
    "rows_open": (ctypes.c_void_p, ctypes.POINTER(Word), ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32),
    "rows_close": (None, ctypes.c_void_p),
    "rows_feed": (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int32),
    "rows_calls": (ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))),
    "rows_events": (ctypes.c_int64, ctypes.c_void_p),
    "rows_take": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    "rows_texts": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
}


def absence() -> str | None:
    """Return why the native reader is not used, in a few words; None if it is."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    return None if _loaded() else _why_not()


def load_library() -> ctypes.CDLL | None:
    """Return the compiled reader; None where it is absent or switched off."""
    return None if os.environ.get(VARIABLE) == "0" else _loaded()


def _why_not() -> str:
    return "it was built for another version" if LIBRARY_FILE.exists() else "it was not built"


@cache
def _loaded() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(LIBRARY_FILE))
        revision = found.rows_revision()
    except (OSError, AttributeError):
        return None
    if revision != REVISION:
        return None
    for name, (result, *arguments) in _RESULTS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


IGNORED = "ignored"
"""The rows that hold the category of each event of an unknown one."""

_OLD = "external_id_old"

COLUMNS = {
    "kernels": (
        *("ts", "dur", "name", "device", "stream", "correlation", "external_id", _OLD, "collective"),
        *("blocks_per_sm", "warps_per_sm", "occupancy", "grid", "block", "registers", "shared_memory"),
    ),
    "memcpy": (
        *("ts", "dur", "name", "cat", "device", "stream", "correlation", "external_id", _OLD, "bytes"),
    ),
    "cpu_ops": (
        *("ts", "dur", "pid", "tid", "name", "external_id", _OLD),
        *("record_function_id", "sequence_number", "forward_thread"),
    ),
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
        kind = _BY_NAME.get(field.name, _BY_TYPE[field.type])
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
    found = [*_key_words(Event, _Role.EVENT_KEY), *_key_words(Args, _Role.ARGUMENT_KEY)]
    kinds: dict[str, str | None] = {**CATEGORIES, **dict.fromkeys(UNUSED_CATEGORIES)}
    found += [_category_word(category, kind) for category, kind in kinds.items()]
    prefixes = [name.encode() for name in CALL_NAMES]
    found += [Word(text, len(text), _Role.CALL_PREFIX) for text in prefixes]
    return (Word * len(found))(*found)


@cache
def native_tables() -> ctypes.Array[ctypes.c_int32]:
    """Return for each kind of rows how many columns it has, and their slots."""
    numbers = [n for names in COLUMNS.values() for n in (len(names), *(_slots()[name] for name in names))]
    return (ctypes.c_int32 * len(numbers))(*numbers)
