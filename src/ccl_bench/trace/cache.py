"""Tables of traces kept as Parquet outside the run, so that a file is parsed once.

A trace's folder is named after the file's path, size, inode and times, and the revision of the
reader, so a changed file or reader never meets old tables. The time of the last change of anything is
among them: it tells a file that was written over and given its old modification time again. The folder
appears whole or not at all; a damaged one is dropped and made again.
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
from ccl_bench.trace import ondisk
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.ondisk import OnDisk, put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.trace.format import TraceFile

LAYOUT = 1
"""Raised when the layout of a cached folder changes."""

_ABOUT = "about.json"


def folder(trace: TraceFile) -> Path:
    """Return where the tables of `trace` are kept."""
    stat = trace.path.stat()
    times = getattr(stat, "st_mtime_ns", None) or stat.st_mtime, getattr(stat, "st_ctime_ns", 0)
    inode = getattr(stat, "st_ino", 0)
    reader = (LAYOUT, trace.form.name, trace.form.revision)
    file = (str(trace.path.absolute()), trace.part, stat.st_size, times, inode, remote.version(trace.path))
    key = hashlib.sha256(repr((*reader, *file)).encode()).hexdigest()[:32]
    return storage.cache_directory() / "traces" / key


def is_kept(trace: TraceFile) -> bool:
    """Whether the tables of `trace` are in the cache."""
    try:
        return (folder(trace) / _ABOUT).is_file()
    except OSError:
        return False


def stored(place: Path, tables: Iterable[str]) -> tuple[TraceContent, str] | None:
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
    if rows > ondisk.LARGE_ROWS:
        return ondisk.kept(path, rows, TABLES[name])
    table = pl.read_parquet(path, glob=False, memory_map=False)
    if table.height != rows or table.schema != TABLES[name].empty().schema:
        raise ValueError(f"the kept table {name} is another")
    return table


def store(place: Path, content: TraceContent, sha256: str) -> None:
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
            put(table, path)
    about = {
        "rank": content.rank,
        "world_size": content.world_size,
        "findings": [asdict(finding) for finding in content.findings],
        "attributes": content.attributes,
        "tables": {name: table.height for name, table in content.tables.items()},
        "sha256": sha256,
    }
    (place / _ABOUT).write_bytes(msgspec.json.encode(about))
