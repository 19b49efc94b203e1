"""Nsight Systems: SQLite exports of any schema version, JSON exports, and reports that `nsys` exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, InParts, TracePart, any_of, register
from ccl_bench.trace.formats.nsys.recognition import is_export, is_json_export, is_report

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent


recognises = any_of(is_export, is_report, is_json_export)


def _parts(path: Path) -> list[TracePart]:
    from ccl_bench.trace.formats.nsys.processes import processes

    parts = processes(path)
    is_single = len(parts) == 1
    return [
        TracePart("" if is_single else part.id, Identity(part.rank, part.world_size), part.local_rank)
        for part in parts
    ]


def _read(path: Path, file: str, part: str) -> TraceContent:
    from ccl_bench.trace.formats.nsys.reader import read_nsys

    return read_nsys(path, file, part or None)


NSYS = register(
    Format(
        name="nsys",
        profile="nsys",
        revision=5,
        tables=frozenset(
            {
                "kernels",
                "memcpy",
                "cpu_ops",
                "launches",
                "annotations",
                "collectives",
                "devices",
                "counters",
                "network_traffic",
            }
        ),
        recognises=recognises,
        in_parts=InParts(_parts, _read),
        suffixes=(".sqlite", ".sqlite.gz", ".nsys-rep", ".qdrep", ".json", ".json.gz"),
        exports=((".nsys-rep", ".sqlite"), (".qdrep", ".sqlite")),
        recorder="Nsight Systems",
    )
)
