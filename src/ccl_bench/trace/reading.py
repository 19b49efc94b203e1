"""One trace file to the tables that are wanted of it, from the cache where it holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.storage import remote
from ccl_bench.trace import cache

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.format import TraceFile


def content_of(
    trace: TraceFile, tables: Iterable[str], *, use_cache: bool = True
) -> tuple[TraceContent, str]:
    """Return the content of `trace`, with at least the named tables, and the file's SHA-256."""
    try:
        # Named before the file is read: what is written meanwhile is another file with another place.
        place = cache.folder(trace)
        if use_cache and (kept := cache.stored(place, tables)):
            return kept
        with remote.local_copy(trace.path) as path:
            content = _read(trace, path)
            sha256 = storage.sha256(path)
    except OSError as error:
        raise storage.unreadable(trace.path, error) from error
    if use_cache:
        cache.store(place, content, sha256)
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
