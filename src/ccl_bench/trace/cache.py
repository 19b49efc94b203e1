"""Read a trace once: its tables are kept as Parquet outside the run.

A trace's folder is named after the file's path, size, inode and times, and the revision of the reader, so a
changed file or reader never meets old tables. The time of the last change of anything is among them: it shows
that a file was written over and given its old modification time again. The folder appears whole or not at
all; a damaged one is dropped and made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench import storage
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.storage import remote
from ccl_bench.trace import content
from ccl_bench.trace.content import OnDisk, TraceContent, write_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.trace.format import TraceFile

LAYOUT = 1
"""Raised when the layout of a cached folder changes."""

_ABOUT = "about.json"


def cache_folder(trace: TraceFile) -> Path:
    """Return where the tables of `trace` are kept."""
    stat = trace.path.stat()
    times = getattr(stat, "st_mtime_ns", None) or stat.st_mtime, getattr(stat, "st_ctime_ns", 0)
    inode = getattr(stat, "st_ino", 0)
    reader = (LAYOUT, trace.form.name, trace.form.revision)
    file = (str(trace.path.absolute()), trace.part, stat.st_size, times, inode, remote.version(trace.path))
    key = hashlib.sha256(repr((*reader, *file)).encode()).hexdigest()[:32]
    return storage.cache_directory() / "traces" / key


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
        about: dict[str, Any] = msgspec.json.decode((place / _ABOUT).read_bytes(), type=dict)
        kept = {name: _table(place, name, about["tables"].get(name, 0)) for name in tables}
        findings = [msgspec.convert(item, Finding) for item in about["findings"]]
        content = TraceContent(kept, about["rank"], about["world_size"], findings, about["attributes"])
        return content, about["sha256"]
    except (Exception, pl.exceptions.PanicException):  # a folder that was tampered with may raise anything
        shutil.rmtree(place, ignore_errors=True)
        return None


def _table(place: Path, name: str, rows: int) -> pl.DataFrame | OnDisk:
    if not rows:
        return TABLES[name].empty()
    path = place / f"{name}.parquet"
    if rows > content.LARGE_ROWS:
        return content.open_table(path, rows, TABLES[name])
    table = pl.read_parquet(path, glob=False, memory_map=False)
    if table.height != rows or table.schema != TABLES[name].empty().schema:
        raise ValueError(f"the kept table {name} is another")
    return table


def save_cached(place: Path, content: TraceContent, sha256: str) -> None:
    """Keep the content of a trace in `place`; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError, pl.exceptions.PolarsError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix="."))
        try:
            _write(temporary, content, sha256)
            if not (place / _ABOUT).is_file():  # what is there is broken
                shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process was faster
                temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(place: Path, content: TraceContent, sha256: str) -> None:
    for name, table in content.tables.items():
        path = place / f"{name}.parquet"
        if isinstance(table, OnDisk):
            table.moved(path)
        elif table.height:
            write_table(table, path)
    about = {
        "rank": content.rank,
        "world_size": content.world_size,
        "findings": [asdict(finding) for finding in content.findings],
        "attributes": content.attributes,
        "tables": {name: table.height for name, table in content.tables.items()},
        "sha256": sha256,
    }
    (place / _ABOUT).write_bytes(msgspec.json.encode(about))


def read_content(
    trace: TraceFile, tables: Iterable[str], *, use_cache: bool = True
) -> tuple[TraceContent, str]:
    """Return the content of `trace`, with at least the named tables, and the file's SHA-256."""
    try:
        # Named before the file is read: what is written meanwhile is another file with another place.
        place = cache_folder(trace)
        if use_cache and (kept := load_cached(place, tables)):
            return kept
        with remote.local_copy(trace.path) as path:
            content = _read(trace, path)
            sha256 = storage.sha256(path)
    except OSError as error:
        raise storage.unreadable(trace.path, error) from error
    if use_cache:
        save_cached(place, content, sha256)
    return content, sha256


def _read(trace: TraceFile, path: Path) -> TraceContent:
    """Return the content of `trace`, whose file lies at `path` on this machine."""
    form = trace.form
    if form.in_parts:
        return form.in_parts.read(path, trace.relative, trace.part)
    if form.read is None:
        raise TypeError(f"the format {form.name} says neither how to read a file nor its parts")
    with storage.open_file(path) as stream:
        return form.read(stream, trace.relative)
