"""The compiled library that the readers in C are in, and tables that it reads from an SQLite database.

Its columns are handed to polars without a copy.

The library is loaded where it is there and of this version. Of a database it reads what SQLite reads, in the
same order; where there is anything unusual in the file or in a wanted value, a table is refused as a whole.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VARIABLE = "CCL_BENCH_NATIVE"
"""Set to 0, the environment variable that leaves the native readers out."""

REVISION = 3
"""As in columns.h."""

LIBRARY_FILE = Path(__file__).with_name("librows.so")


def absence() -> str | None:
    """Return the reason why the native readers are not used, in a few words; None if they are."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    return None if _loaded() else _why_not()


def _why_not() -> str:
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


class _Column(ctypes.Structure):
    """`Wanted` of sqlite.c."""

    _fields_ = (
        ("field", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("is_real", ctypes.c_int32),
        ("is_filled", ctypes.c_int32),
    )


_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "scan_open": (
        ctypes.c_void_p,
        *(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64),
        *(ctypes.POINTER(_Column), ctypes.c_int32),
        *(ctypes.POINTER(_Column), ctypes.POINTER(ctypes.c_int64), ctypes.c_int32),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
    ),
    "scan_step": (ctypes.c_int, ctypes.c_void_p),
    "scan_height": (ctypes.c_int64, ctypes.c_void_p),
    "scan_text_bytes": (ctypes.c_int64, ctypes.c_void_p),
    "scan_take": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "scan_close": (None, ctypes.c_void_p),
}


@dataclass(frozen=True, slots=True)
class Field:
    """Where SQLite finds the values of a column."""

    place: int
    """Its place in a record; -1 for the number of the row."""
    is_real: bool = False
    """Whether whole numbers of it are given as real ones."""
    is_filled: bool = False
    """Whether it has a default, which records may lack."""


Ranges = Sequence[tuple[int, int]]
"""First and last number of each range."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in the file a table is, and which of its rows are wanted."""

    root: int
    """Number of its first page."""
    fields: dict[str, Field]
    """Each wanted column."""
    filter: Field = Field(-1)
    ranges: Ranges = ()
    """Ranges of numbers, in one of which `filter` has to lie; without any, every row is wanted."""
    brief: Field = Field(-1)
    longest: int = -1
    """Bytes of the text or blob that has to be in `brief` at most; -1 where it may hold anything."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a table can hold at most: more is refused."""

    rows: int
    text_bytes: int


class Refused(Exception):  # noqa: N818 (an event to act on, no error to report)
    """A table that has to be read by SQLite, from its beginning."""


class TableFile:
    """An open database whose tables are read by C."""

    def __init__(self, library: ctypes.CDLL, descriptor: int, size: int) -> None:
        self._library = library
        self._descriptor = descriptor
        self._size = size

    def blocks(
        self, layout: Layout, kinds: dict[str, str], bounds: Bounds
    ) -> Generator[tuple[pl.DataFrame, int], None, None]:
        """Yield the rows of a table block by block, each with the bytes of all texts so far.

        `kinds` says as what each column is read: `integer`, `real`, `text` or `blob`. Raises Refused where
        SQLite has to read the table, also after some blocks.
        """
        columns = [_column(layout.fields[name], kind) for name, kind in kinds.items()]
        numbers = [number for pair in sorted(layout.ranges) for number in pair]
        handle = self._library.scan_open(
            *(self._descriptor, self._size, layout.root),
            *((_Column * len(columns))(*columns), len(columns)),
            (_Column * 2)(_column(layout.filter, "integer"), _column(layout.brief, "blob")),
            *((ctypes.c_int64 * len(numbers))(*numbers), len(layout.ranges), layout.longest),
            *(bounds.rows, bounds.text_bytes),
        )
        if not handle:
            raise Refused
        with closing(_Scan(self._library, handle)) as scan:
            while (state := scan.step()) > 0:
                yield scan.rows([*kinds]), scan.text_bytes()
            if state < 0:
                raise Refused
            if scan.height():
                yield scan.rows([*kinds]), scan.text_bytes()


class _Scan:
    """One reading of a table."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._handle = handle

    def close(self) -> None:
        self._library.scan_close(self._handle)

    def step(self) -> int:
        state: int = self._library.scan_step(self._handle)
        return state

    def height(self) -> int:
        rows: int = self._library.scan_height(self._handle)
        return rows

    def text_bytes(self) -> int:
        size: int = self._library.scan_text_bytes(self._handle)
        return size

    def rows(self, names: list[str]) -> pl.DataFrame:
        return taken_table(names, lambda *places: self._library.scan_take(self._handle, *places))


def _column(field: Field, kind: str) -> _Column:
    return _Column(field.place, _KINDS[kind], field.is_real, field.is_filled)


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
