"""rocprofv3: the JSON or the database that it writes of each process, `*_results.json` and `*_results.db`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, InParts, TracePart, all_of, begins, holds, register

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_AGENTS = holds(b'"agents"')
"""A file of results, and not rocprofv3's record of its own configuration, which begins alike."""

recognises = all_of(begins(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:'), _AGENTS)
recognises_database = all_of(begins(rb"SQLite format 3\x00"), holds(b"rocpd_kernel_dispatch"))


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.rocprof.reader import read_rocprof

    return read_rocprof(stream, file)


def _parts(path: Path) -> list[TracePart]:
    from ccl_bench.trace.formats.rocprof.database import parts

    return parts(path)


def _read_part(path: Path, file: str, part: str) -> TraceContent:
    from ccl_bench.trace.formats.rocprof.reader import read_rocpd

    return read_rocpd(path, file, part)


_TABLES = frozenset({"kernels", "memcpy", "launches", "annotations", "collectives", "devices"})

ROCPROF = register(
    Format(
        name="rocprof",
        profile="nsys",
        revision=1,
        tables=_TABLES,
        recognises=recognises,
        read=_read,
        recorder="rocprofv3",
    )
)

ROCPD = register(
    Format(
        name="rocpd",
        profile="nsys",
        revision=2,
        tables=_TABLES,
        recognises=recognises_database,
        in_parts=InParts(_parts, _read_part),
        suffixes=(".db",),
        exports=((".db", ".json"),),
        recorder="rocprofv3",
    )
)
