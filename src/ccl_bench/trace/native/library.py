"""The compiled library that the readers in C are in: loaded where it is there and of this version.

Its columns are handed to polars without a copy.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "CCL_BENCH_NATIVE"
"""Set to 0, the environment variable that leaves the native readers out."""

REVISION = 3
"""As in columns.h."""

LIBRARY_FILE = Path(__file__).with_name("librows.so")


def absence() -> str | None:
    """Return why the native readers are not used, in a few words; None if they are."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    return None if _loaded() else _why_not()


def _why_not() -> str:
    return "it was built for another version" if LIBRARY_FILE.exists() else "it was not built"


@cache
def _loaded() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(LIBRARY_FILE))
        revision = found.native_revision()
    except (OSError, AttributeError):
        return None
    return found if revision == REVISION else None


def load_library(functions: Mapping[str, tuple[object, ...]]) -> ctypes.CDLL | None:
    """Return the compiled library; None where it is absent or switched off.

    `functions` maps each function that is called to the type of its result and those of its arguments.
    """
    found = None if os.environ.get(VARIABLE) == "0" else _loaded()
    if found is not None:
        for name, (result, *arguments) in functions.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    return found


_SCHEMA_BYTES, _ARRAY_BYTES = 72, 80
"""Sizes of `ArrowSchema` and `ArrowArray`, which the C data interface fixes."""

_RELEASE = {_SCHEMA_BYTES: 56, _ARRAY_BYTES: 64}
"""The place of the function that frees each of them."""

_NEW_CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _Handover:
    """An array on its way from C to polars, without a copy."""

    def __init__(self, fill: Callable[[int, int], int]) -> None:
        self._schema = ctypes.create_string_buffer(_SCHEMA_BYTES)
        self._array = ctypes.create_string_buffer(_ARRAY_BYTES)
        if fill(ctypes.addressof(self._schema), ctypes.addressof(self._array)):
            raise MemoryError

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _NEW_CAPSULE(ctypes.addressof(self._schema), b"arrow_schema", None),
            _NEW_CAPSULE(ctypes.addressof(self._array), b"arrow_array", None),
        )

    def series(self) -> pl.Series:
        """Return the array; what polars did not take over is freed."""
        try:
            return pl.Series(self)
        finally:
            for given in (self._schema, self._array):
                release = ctypes.c_void_p.from_buffer(given, _RELEASE[len(given)]).value
                if release:
                    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)(ctypes.addressof(given))


def taken_texts(fill: Callable[[int, int], int]) -> pl.Series:
    """Return the texts that `fill` hands over: it is given the addresses of a schema and an array.

    Raises MemoryError where it returns anything but 0.
    """
    return _Handover(fill).series()


def taken_table(names: list[str], fill: Callable[[int, int], int]) -> pl.DataFrame:
    """Return the table of columns with these names that `fill` hands over, like `taken_texts`."""
    frame = _Handover(fill).series().struct.unnest()
    frame.columns = names
    return frame
