"""Find and load the compiled reader."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

VARIABLE = "CCL_BENCH_NATIVE"
"""Set to 0, the environment variable that leaves the native reader out."""

REVISION = 1
"""As in rows.h."""

FILE = Path(__file__).with_name("librows.so")


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


def library() -> ctypes.CDLL | None:
    """Return the compiled reader; None where it is absent or switched off."""
    return None if os.environ.get(VARIABLE) == "0" else _loaded()


def _why_not() -> str:
    return "it was built for another version" if FILE.exists() else "it was not built"


@cache
def _loaded() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(FILE))
        revision = found.rows_revision()
    except (OSError, AttributeError):
        return None
    if revision != REVISION:
        return None
    for name, (result, *arguments) in _RESULTS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
