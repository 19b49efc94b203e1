"""One trace file to the tables that are wanted of it, from the cache where it holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.trace import cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.discovery import TraceFile


def content_of(trace: TraceFile, tables: Iterable[str], *, use_cache: bool = True) -> tuple[TraceContent, str]:
    """Return the content of `trace`, with at least the named tables, and the file's SHA-256."""
    if use_cache and (kept := cache.stored(trace, tables)):
        return kept
    try:
        with storage.opened(trace.path) as stream:
            content = trace.form.read(stream, trace.relative)
        sha256 = storage.sha256(trace.path)
    except OSError as error:
        raise storage.unreadable(trace.path, error) from error
    if use_cache:
        cache.store(trace, content, sha256)
    return content, sha256

