"""Reading a trace, and the cache that keeps its tables outside the run.

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
import shutil
import threading
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import __version__, storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding  # noqa: TC001  msgspec reads the types of fields
from ccl_bench.base.foreign import call_contained, is_foreign, reason_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import json_decoder
from ccl_bench.schema import TABLES
from ccl_bench.storage import journals_of, local_copy, stored_version
from ccl_bench.trace import memory
from ccl_bench.trace.content import LARGE_ROWS, OnDisk, TraceContent, disk_errors, scratch_folder, write_table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ccl_bench.trace.formats import TraceFile

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


_DECODER = json_decoder(_About)


def cache_folder(trace: TraceFile) -> Path:
    """Return the folder that keeps the tables of `trace`."""
    return _folder_of(trace, _state_of(trace))


def _folder_of(trace: TraceFile, state: tuple[object, ...]) -> Path:
    reader = (LAYOUT, __version__, trace.form.name, trace.form.revision)
    key = (*reader, trace.relative, trace.part, *state)
    return storage.cache_directory() / "traces" / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _state_of(trace: TraceFile) -> tuple[object, ...]:
    """Return the names of a trace's file and journals, and the attributes that change with their content."""
    state: list[object] = []
    for path in (trace.path, *_journals_of(trace, trace.path)):
        stat = path.stat()
        # Remote files have fewer of these, and a version in their place.
        times = getattr(stat, "st_mtime_ns", None) or stat.st_mtime, getattr(stat, "st_ctime_ns", 0)
        inode = getattr(stat, "st_ino", 0)
        state += [str(path.absolute()), stat.st_size, times, inode, stored_version(path)]
    return tuple(state)


def _journals_of(trace: TraceFile, path: Path) -> list[Path]:
    """Return the journals beside a trace's file, or a copy of it; only databases have some."""
    return journals_of(path) if trace.form.in_parts else []


def is_cached(trace: TraceFile) -> bool:
    """Whether the tables of `trace` are in the cache."""
    try:
        return _is_kept(cache_folder(trace))
    except OSError:
        return False


def _is_kept(place: Path) -> bool:
    try:
        return (place / _ABOUT).is_file()
    except OSError:  # of another user, with whom the cache is shared
        return False


def load_cached(place: Path, tables: Iterable[str]) -> tuple[TraceContent, str] | None:
    """Return the content kept in `place`, with the named tables, and the trace's hash; None without it."""
    if not _is_kept(place):
        return None
    try:
        about = _DECODER.decode((place / _ABOUT).read_bytes())
        frames = {name: _kept_table(place, name, about) for name in tables}
        content = TraceContent(frames, about.rank, about.world_size, about.findings, about.attributes)
        return content, about.sha256
    except (Exception, pl.exceptions.PanicException):  # a folder that was tampered with may raise anything
        shutil.rmtree(place, ignore_errors=True)
        return None


def _kept_table(place: Path, name: str, about: _About) -> pl.DataFrame | OnDisk:
    """Return a table of a cached folder; ValueError if it has other bytes, rows or columns than were kept."""
    rows, schema = about.tables.get(name, 0), TABLES[name].empty().schema
    if not rows:
        return TABLES[name].empty()
    if rows > LARGE_ROWS:
        path = place / f"{name}.parquet"
        if pl.read_parquet_schema(path) != schema:
            raise ValueError(f"the kept table {name} does not match")
        return OnDisk(path, rows)
    stream = about.streams[name]
    with (place / _STREAMS).open("rb") as file:
        file.seek(stream.start)
        content = file.read(stream.size)
    if zlib.crc32(content) != stream.check:
        raise ValueError("other bytes than were kept")
    table = pl.read_ipc_stream(content)
    if table.height != rows or table.schema != schema:
        raise ValueError(f"the kept table {name} does not match")
    return table


def save_cached(place: Path, content: TraceContent, sha256: str) -> None:
    """Keep the content of a trace in `place`; a cache that cannot be written is no error."""
    with contextlib.suppress(*disk_errors()):
        storage.private_folder(place.parent)
        scratch = scratch_folder()  # what a killed process leaves there is removed later
        folder = scratch.path / "whole"
        folder.mkdir()
        _write(folder, content, sha256)
        storage.make_private(folder)
        if place.exists() and not _is_kept(place):  # the folder is broken
            place.rename(scratch.path / "broken")
        with contextlib.suppress(OSError):  # another process was faster
            folder.rename(place)


def _write(folder: Path, content: TraceContent, sha256: str) -> None:
    streams, buffer = {}, io.BytesIO()
    for name, table in content.tables.items():
        if isinstance(table, OnDisk):
            table.moved(folder / f"{name}.parquet")
        elif table.height > LARGE_ROWS:
            write_table(table, folder / f"{name}.parquet")
        elif table.height:
            start = buffer.tell()
            table.write_ipc_stream(buffer, compression="lz4")
            streams[name] = _Stream(start, buffer.tell() - start, zlib.crc32(buffer.getbuffer()[start:]))
    (folder / _STREAMS).write_bytes(buffer.getbuffer())
    rows = {name: table.height for name, table in content.tables.items()}
    about = _About(
        content.rank, content.world_size, content.findings, content.attributes, rows, streams, sha256
    )
    (folder / _ABOUT).write_bytes(msgspec.json.encode(about))


_HASHES: dict[tuple[object, ...], Future[str]] = {}
"""State of a file → its SHA-256, of the last few files: several traces may be in one."""
_MOST_HASHES = 64
_ASKING = threading.Lock()


def read_content(
    trace: TraceFile, tables: Iterable[str], *, use_cache: bool = True
) -> tuple[TraceContent, str]:
    """Return the content of `trace`, with at least the named tables, and the file's SHA-256.

    Raises InputError if the file cannot be read, is damaged beyond use, or takes more memory than it may.
    """
    try:
        # Named before the file is read: what is written meanwhile is another file with another place.
        state = _state_of(trace)
        place = _folder_of(trace, state)
        if use_cache and (cached := load_cached(place, tables)):
            return cached
        with local_copy(trace.path) as path, ThreadPoolExecutor(1) as executor:
            files = (path, *_journals_of(trace, path))
            written = [*map(_written, files)]
            with _ASKING:  # threads that read several traces of one file hash it once
                hashed = _HASHES.get(state)
                if hashed is None or (hashed.done() and hashed.exception()):
                    # On another core, where there is one.
                    hashed = _HASHES[state] = executor.submit(storage.sha256, *files)
                    for oldest in [*_HASHES][:-_MOST_HASHES]:
                        del _HASHES[oldest]
            content, sha256 = _read(trace, path), hashed.result()
            if [*map(_written, files)] != written:
                fix = "read it once it is complete"
                raise InputError("changed while it was read", where=trace.relative, fix=fix)
    except OSError as error:
        raise storage.unreadable(trace.path, error) from error
    if use_cache:
        save_cached(place, content, sha256)
    return content, sha256


def _check_content(content: TraceContent) -> None:
    """Raise TypeError if what a format of another package returned is no content with the tables it names."""
    if not isinstance(content, TraceContent):
        raise TypeError(f"read returned {type(content).__name__}, and not TraceContent")
    for name, table in content.tables.items():
        columns = TABLES[name].columns.keys()
        if isinstance(table, pl.DataFrame) and (missing := columns - table.columns):
            raise TypeError(f"its table {name} has no column {min(missing)}")


def _written(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is written to or replaced, and not when it gets another link."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _read(trace: TraceFile, path: Path) -> TraceContent:
    """Return the content of `trace`, whose file lies at `path` on this machine."""
    form = trace.form
    storage.refuse_holes(path)
    try:
        with memory.bounded(trace):
            if form.in_parts:
                return form.in_parts.read(path, trace.relative, trace.part)
            if form.read is None:
                raise TypeError(f"the format {form.name} says neither how to read a file nor its parts")
            with memory.open_trace(path) as stream:
                content = call_contained(form.read, stream, trace.relative)
            if is_foreign(form.read):
                _check_content(content)
            return content
    except InputError:
        raise
    except Exception as error:
        if form.read is not None and is_foreign(form.read):
            why = f"the format {form.name} of the plug-in {form.read.__module__} failed: {reason_of(error)}"
            raise InputError(why, where=trace.relative, fix="ask its author") from error
        error.add_note(f"raised while {trace.relative} was read as {form.name}")
        raise
