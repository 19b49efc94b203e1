"""Tables of an SQLite database, read from the pages of the file by C.

What is read, SQLite reads to the same values in the same order. Where there is anything unusual in the file
or in a wanted value, a table is refused as a whole.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.trace.native.library import load_library, taken_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.base.lazy_imports import pl

_KINDS = {"integer": 0, "real": 1, "text": 2, "blob": 3}


class _Wanted(ctypes.Structure):
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
        wanted = [_wanted(layout.fields[name], kind) for name, kind in kinds.items()]
        numbers = [number for pair in sorted(layout.ranges) for number in pair]
        handle = self._library.scan_open(
            *(self._descriptor, self._size, layout.root),
            *((_Wanted * len(wanted))(*wanted), len(wanted)),
            (_Wanted * 2)(_wanted(layout.filter, "integer"), _wanted(layout.brief, "blob")),
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
        found: int = self._library.scan_step(self._handle)
        return found

    def height(self) -> int:
        found: int = self._library.scan_height(self._handle)
        return found

    def text_bytes(self) -> int:
        found: int = self._library.scan_text_bytes(self._handle)
        return found

    def rows(self, names: list[str]) -> pl.DataFrame:
        return taken_table(names, lambda *places: self._library.scan_take(self._handle, *places))


def _wanted(field: Field, kind: str) -> _Wanted:
    return _Wanted(field.place, _KINDS[kind], field.is_real, field.is_filled)


@contextmanager
def open_tables(path: Path, status: os.stat_result) -> Iterator[TableFile | None]:
    """Open a database for reading by C; None where that is not compiled, or another file has come there."""
    library = load_library(_FUNCTIONS)
    if library is None:
        yield None
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        is_same = (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)
        yield TableFile(library, descriptor, found.st_size) if is_same else None
    finally:
        os.close(descriptor)
