"""rocprofv3: the JSON or the database that it writes of each process, `*_results.json` and `*_results.db`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, InParts, Part, register

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_TOOL = re.compile(rb'\A\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_AGENTS = b'"agents"'
"""Stands in a file of results and not in rocprofv3's record of its own configuration, which begins alike."""


def recognises(head: bytes) -> bool:
    """Whether a file that begins with these bytes holds results of rocprofv3."""
    return _TOOL.match(head) is not None and _AGENTS in head


def identity(_: bytes) -> Identity:
    """Return nothing: the file does not state whose trace it is."""
    return Identity()


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.rocprof.reader import read_rocprof

    return read_rocprof(stream, file)


def recognises_database(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a database of rocprofv3."""
    return head.startswith(b"SQLite format 3\x00") and b"rocpd_kernel_dispatch" in head


def _parts(path: Path) -> list[Part]:
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
        identity=identity,
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
        identity=identity,
        in_parts=InParts(_parts, _read_part),
        suffixes=(".db",),
        exports=((".db", ".json"),),
        recorder="rocprofv3",
    )
)
