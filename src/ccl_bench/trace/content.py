"""The content of one trace after reading: its tables, and the cache that keeps them outside the run.

A trace's folder is named after the file's path, size, inode and times, the version of the program and the
revision of the reader, so a changed file or reader never meets old tables. The time of the last change of
anything is among them: it shows that a file was written over and given its old modification time again. The
file's name within the run is too: what is wrong with the file is reported under it. The folder appears whole
or not at all; a damaged one is dropped and made again.

Large tables are kept as Parquet, of which some columns can be read. The others are Arrow streams in one file,
which takes less time to write and read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import threading
import time
import weakref
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import __version__, storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding  # noqa: TC001  msgspec reads the types of fields
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.storage import journals_of, local_copy, stored_version
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.schema.table import Table
    from ccl_bench.trace.formats import TraceFile

LARGE_ROWS = 1 << 20
"""Rows from which on a kept table is not held: about 70 MB of a Kineto trace."""

FORGOTTEN_S = 2 * 86_400
"""Age after which a scratch folder belongs to no process: none works on one trace for two days."""


class Scratch:
    """A temporary folder that is removed when nothing refers to this object."""

    def __init__(self, place: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(dir=place))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A table in a Parquet file."""

    path: Path
    height: int
    folder: Scratch | None = None
    """What the file goes with, where it is no part of the cache."""

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table, or some of its columns.

        Raises InputError if the file is damaged; its folder is removed then, so that it is made anew.
        """
        try:
            names = None if columns is None else list(columns)
            table = pl.read_parquet(self.path, columns=names, glob=False, memory_map=False)
            if table.height != self.height:
                raise ValueError("other rows than were kept")
        except (Exception, pl.exceptions.PanicException) as error:  # damaged bytes may raise anything
            shutil.rmtree(self.path.parent, ignore_errors=True)
            fix = "run the command again: the trace is read anew"
            message = f"the kept table is damaged: {error}"
            raise InputError(message, where=str(self.path), fix=fix) from error
        return table

    def moved(self, path: Path) -> None:
        """Put the file at `path` too, without copying it where the file system allows."""
        try:
            os.link(self.path, path)
        except OSError:
            shutil.copyfile(self.path, path)


def open_table(path: Path, rows: int, table: Table) -> OnDisk:
    """Return the table in the file at `path`; ValueError if it has other columns."""
    if pl.read_parquet_schema(path) != table.empty().schema:
        raise ValueError(f"the kept table {table.name} does not match")
    return OnDisk(path, rows)


def scratch_folder() -> Scratch:
    """Return a temporary folder for a trace in use, next to the cache if possible."""
    place = storage.cache_directory() / "scratch"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        return Scratch(place)
    return Scratch()


def _sweep(place: Path) -> None:
    """Remove folders of killed processes: those that nothing has written to for long."""
    for folder in place.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > FORGOTTEN_S:
                shutil.rmtree(folder, ignore_errors=True)


def disk_errors() -> tuple[type[Exception], ...]:
    """Return the errors of writing to a disk that is full or may not be written to."""
    return (OSError, pl.exceptions.PolarsError)


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a large table as the cache keeps it."""
    table.write_parquet(path, compression="lz4", statistics=False)


@dataclass(slots=True)
class TraceContent:
    """One trace file as tables."""

    tables: Mapping[str, pl.DataFrame | OnDisk] = field(default_factory=dict)
    """Raw tables by name; one that the format does not know is absent, not empty."""
    rank: int | None = None
    """The rank that the file says it is from."""
    world_size: int | None = None
    """The number of ranks that the file says the job had."""
    findings: list[Finding] = field(default_factory=list)
    """What was wrong with the file."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Versions and names that the file records, such as `nccl_version`."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table called `name`, or some of its columns; empty if the format has none."""
        table = self.tables.get(name)
        if isinstance(table, OnDisk):
            return table.frame(columns)
        rows = TABLES[name].empty() if table is None else table
        return rows if columns is None else rows[list(columns)]

    def height(self, name: str) -> int:
        """Return the number of rows of a table."""
        table = self.tables.get(name)
        return 0 if table is None else table.height


LAYOUT = 3
"""Increased when the layout of a cached folder changes."""

_ABOUT = "about.json"
_STREAMS = "tables.arrow"


class _Stream(msgspec.Struct, array_like=True):
    """Position of one table's stream in the common file."""

    start: int
    size: int
    """Bytes."""
    check: int
    """CRC-32."""


class _About(msgspec.Struct):
    """Facts of a trace that the cache keeps besides its tables."""

    rank: int | None
    world_size: int | None
    findings: list[Finding]
    attributes: dict[str, str]
    tables: dict[str, int]
    """Rows of each."""
    streams: dict[str, _Stream]
    """Those that have rows and are not large."""
    sha256: str


# Made here and not where it is used: msgspec 0.22 crashes where two threads are the first to need a type.
_DECODER = msgspec.json.Decoder(_About)


def cache_folder(trace: TraceFile) -> Path:
    """Return the folder that keeps the tables of `trace`."""
    return _folder_of(trace, _state_of(trace))


def _folder_of(trace: TraceFile, state: tuple[object, ...]) -> Path:
    reader = (LAYOUT, __version__, trace.form.name, trace.form.revision)
    key = (*reader, trace.relative, trace.part, *state)
    return storage.cache_directory() / "traces" / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _state_of(trace: TraceFile) -> tuple[object, ...]:
    """Return the names of a trace's file and journals, and the attributes that change with their content."""
    files = (trace.path, *_journals_of(trace, trace.path))
    return tuple(value for path in files for value in _state_of_file(path))


def _journals_of(trace: TraceFile, path: Path) -> list[Path]:
    """Return the journals beside a trace's file, or a copy of it; only databases have some."""
    return journals_of(path) if trace.form.in_parts else []


def _state_of_file(path: Path) -> tuple[object, ...]:
    stat = path.stat()
    times = getattr(stat, "st_mtime_ns", None) or stat.st_mtime, getattr(stat, "st_ctime_ns", 0)
    return str(path.absolute()), stat.st_size, times, getattr(stat, "st_ino", 0), stored_version(path)


def is_cached(trace: TraceFile) -> bool:
    """Whether the tables of `trace` are in the cache."""
    try:
        return (cache_folder(trace) / _ABOUT).is_file()
    except OSError:
        return False


def load_cached(place: Path, tables: Iterable[str]) -> tuple[TraceContent, str] | None:
    """Return the content kept in `place`, with the named tables, and the trace's hash; None without it."""
    if not (place / _ABOUT).is_file():
        return None
    try:
        about = _DECODER.decode((place / _ABOUT).read_bytes())
        frames = {name: _table(place, name, about) for name in tables}
        content = TraceContent(frames, about.rank, about.world_size, about.findings, about.attributes)
        return content, about.sha256
    except (Exception, pl.exceptions.PanicException):  # a folder that was tampered with may raise anything
        shutil.rmtree(place, ignore_errors=True)
        return None


def _table(place: Path, name: str, about: _About) -> pl.DataFrame | OnDisk:
    rows = about.tables.get(name, 0)
    if not rows:
        return TABLES[name].empty()
    if rows > LARGE_ROWS:
        return open_table(place / f"{name}.parquet", rows, TABLES[name])
    table = pl.read_ipc_stream(_stream_bytes(place, about.streams[name]))
    if table.height != rows or table.schema != TABLES[name].empty().schema:
        raise ValueError(f"the kept table {name} does not match")
    return table


def _stream_bytes(place: Path, stream: _Stream) -> bytes:
    with (place / _STREAMS).open("rb") as file:
        file.seek(stream.start)
        content = file.read(stream.size)
    if zlib.crc32(content) != stream.check:
        raise ValueError("other bytes than were kept")
    return content


def save_cached(place: Path, content: TraceContent, sha256: str) -> None:
    """Keep the content of a trace in `place`; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError, pl.exceptions.PolarsError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix="."))
        try:
            _write(temporary, content, sha256)
            if not (place / _ABOUT).is_file():  # the folder is broken
                shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process was faster
                temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(place: Path, content: TraceContent, sha256: str) -> None:
    streams, buffer = {}, io.BytesIO()
    for name, table in content.tables.items():
        if isinstance(table, OnDisk):
            table.moved(place / f"{name}.parquet")
        elif table.height > LARGE_ROWS:
            write_table(table, place / f"{name}.parquet")
        elif table.height:
            streams[name] = _write_stream(table, buffer)
    (place / _STREAMS).write_bytes(buffer.getbuffer())
    rows = {name: table.height for name, table in content.tables.items()}
    about = _About(
        content.rank, content.world_size, content.findings, content.attributes, rows, streams, sha256
    )
    (place / _ABOUT).write_bytes(msgspec.json.encode(about))


def _write_stream(table: pl.DataFrame, file: io.BytesIO) -> _Stream:
    """Add a table to the common file and return where it lies."""
    start = file.tell()
    table.write_ipc_stream(file, compression="lz4")
    return _Stream(start, file.tell() - start, zlib.crc32(file.getbuffer()[start:]))


def read_content(
    trace: TraceFile, tables: Iterable[str], *, use_cache: bool = True
) -> tuple[TraceContent, str]:
    """Return the content of `trace`, with at least the named tables, and the file's SHA-256."""
    try:
        # Named before the file is read: what is written meanwhile is another file with another place.
        state = _state_of(trace)
        place = _folder_of(trace, state)
        if use_cache and (cached := load_cached(place, tables)):
            return cached
        with local_copy(trace.path) as path, ThreadPoolExecutor(1) as executor:
            # on another core, where there is one
            hashed = _hash(path, _journals_of(trace, path), state, executor)
            content, sha256 = _read(trace, path), hashed.result()
    except OSError as error:
        raise storage.unreadable(trace.path, error) from error
    if use_cache:
        save_cached(place, content, sha256)
    return content, sha256


_HASHES: dict[tuple[object, ...], Future[str]] = {}
"""State of a file → its SHA-256, of the last few files: several traces may be in one."""
_MOST_HASHES = 64
_ASKING = threading.Lock()


def _hash(
    path: Path, journals: list[Path], state: tuple[object, ...], executor: ThreadPoolExecutor
) -> Future[str]:
    """Return the SHA-256 of a file in some state, for which all ask that read it."""
    with _ASKING:
        future = _HASHES.get(state)
        if future is None or (future.done() and future.exception()):
            future = _HASHES[state] = executor.submit(storage.sha256, path, *journals)
            for oldest in [*_HASHES][:-_MOST_HASHES]:
                del _HASHES[oldest]
        return future


def _read(trace: TraceFile, path: Path) -> TraceContent:
    """Return the content of `trace`, whose file lies at `path` on this machine."""
    form = trace.form
    storage.refuse_holes(path)
    with memory.bounded(trace):
        if form.in_parts:
            return form.in_parts.read(path, trace.relative, trace.part)
        if form.read is None:
            raise TypeError(f"the format {form.name} says neither how to read a file nor its parts")
        with memory.open_trace(path) as stream:
            return form.read(stream, trace.relative)
