"""The compiled library that the readers in C are in, and tables that it reads from an SQLite database.

Its columns are handed to polars without a copy.

The library is loaded where it is there and of this version. Of a database it reads what SQLite reads, in the
same order; where there is anything unusual in the file or in a wanted value, a table is refused as a whole.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VARIABLE = "CCL_BENCH_NATIVE"
"""Set to 0, the environment variable that leaves the native readers out."""

REVISION = 4
"""As in columns.h."""

LIBRARY_FILE = Path(__file__).with_name("librows.so")


def absence() -> str | None:
    """Return the reason why the native readers are not used, in a few words; None if they are."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    if _loaded():
        return None
    return "it was built for another version" if LIBRARY_FILE.exists() else "it was not built"


@cache
def _loaded() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY_FILE))
        revision = library.native_revision()
    except (OSError, AttributeError):
        return None
    return library if revision == REVISION else None


def load_library(functions: Mapping[str, tuple[object, ...]]) -> ctypes.CDLL | None:
    """Return the compiled library; None if it is absent or switched off.

    `functions` maps each function that is called to the type of its result and those of its arguments.
    """
    library = None if os.environ.get(VARIABLE) == "0" else _loaded()
    if library is not None:
        for name, (result, *arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


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
        """Return the array; memory that polars did not take over is freed."""
        try:
            return pl.Series(self)
        finally:
            for structure in (self._schema, self._array):
                release = ctypes.c_void_p.from_buffer(structure, _RELEASE[len(structure)]).value
                if release:
                    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)(ctypes.addressof(structure))


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


_KINDS = {"integer": 0, "real": 1, "text": 2, "blob": 3}


class ColumnPlace(NamedTuple):
    """Where SQLite finds the values of a column."""

    field: int
    """Its place in a record; -1 for the number of the row."""
    is_real: bool = False
    """Whether whole numbers of it are given as real ones."""
    is_filled: bool = False
    """Whether it has a default, which records may lack."""


class _Wanted(ctypes.Structure):
    """`Wanted` of sqlite.c."""

    _fields_ = (
        ("field", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("is_real", ctypes.c_int32),
        ("is_filled", ctypes.c_int32),
    )


def _wanted(place: ColumnPlace, kind: str) -> _Wanted:
    return _Wanted(place.field, _KINDS[kind], place.is_real, place.is_filled)


_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "scan_open": (
        ctypes.c_void_p,
        *(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64),
        *(ctypes.POINTER(_Wanted), ctypes.c_int32),
        *(ctypes.POINTER(_Wanted), ctypes.POINTER(ctypes.c_int64), ctypes.c_int32),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
    ),
    "scan_step": (ctypes.c_int, ctypes.c_void_p),
    "scan_height": (ctypes.c_int64, ctypes.c_void_p),
    "scan_text_bytes": (ctypes.c_int64, ctypes.c_void_p),
    "scan_take": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "scan_close": (None, ctypes.c_void_p),
}

Ranges = Sequence[tuple[int, int]]
"""First and last number of each range."""


class LeftToSQLite(Exception):  # noqa: N818 (an event to act on, no error to report)
    """A table that has to be read by SQLite, from its beginning."""


class TableFile:
    """An open database whose tables are read by C."""

    def __init__(self, library: ctypes.CDLL, descriptor: int, size: int) -> None:
        self._library = library
        self._descriptor = descriptor
        self._size = size

    def blocks(
        self,
        root: int,
        columns: dict[str, tuple[ColumnPlace, str]],
        *,
        numbers: tuple[ColumnPlace, Ranges] | None,
        brief: tuple[ColumnPlace, int] | None,
        most_rows: int,
        most_text_bytes: int,
    ) -> Generator[tuple[pl.DataFrame, int], None, None]:
        """Yield the rows of the table at page `root` block by block, each with the bytes of all texts so far.

        Each column is read as `integer`, `real`, `text` or `blob`. Only rows are given that have one of the
        `numbers` in a column, and in another a text or blob of at most as many bytes as `brief` names. Raises
        LeftToSQLite where SQLite has to read the table, also after some blocks.
        """
        library = self._library
        wanted = [_wanted(place, kind) for place, kind in columns.values()]
        place, ranges = numbers or (ColumnPlace(-1), ())
        brief_place, longest = brief or (ColumnPlace(-1), -1)
        bounds = [number for pair in sorted(ranges) for number in pair]
        handle = library.scan_open(
            *(self._descriptor, self._size, root),
            *((_Wanted * len(wanted))(*wanted), len(wanted)),
            (_Wanted * 2)(_wanted(place, "integer"), _wanted(brief_place, "blob")),
            *((ctypes.c_int64 * len(bounds))(*bounds), len(ranges), longest),
            *(most_rows, most_text_bytes),
        )
        if not handle:
            raise LeftToSQLite
        try:
            has_more = True
            while has_more:
                state = library.scan_step(handle)
                if state < 0:
                    raise LeftToSQLite
                has_more = state > 0
                if has_more or library.scan_height(handle):
                    rows = taken_table([*columns], lambda *places: library.scan_take(handle, *places))
                    yield rows, library.scan_text_bytes(handle)
        finally:
            library.scan_close(handle)


@contextmanager
def open_tables(path: Path, status: os.stat_result) -> Iterator[TableFile | None]:
    """Open a database for reading by C; None if that is not compiled, or another file has come there."""
    library = load_library(_FUNCTIONS)
    if library is None:
        yield None
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        file_status = os.fstat(descriptor)
        is_same = (file_status.st_dev, file_status.st_ino) == (status.st_dev, status.st_ino)
        yield TableFile(library, descriptor, file_status.st_size) if is_same else None
    finally:
        os.close(descriptor)
