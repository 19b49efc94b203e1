"""A CUDA memory snapshot to tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.counting import counted
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.memory_snapshot.tables import (
    Stacks,
    blocks_table,
    events_table,
    length,
    mappings,
    segments_table,
    text,
    whole,
)
from ccl_bench.trace.unpickling import Unpickled, unpickle

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.base.lazy_imports import pl

TABLE_NAMES = (
    "memory_events",
    "memory_segments",
    "memory_blocks",
    "memory_stacks",
    "memory_frames",
    "memory_settings",
)

LARGEST_BYTES = 4 << 30
"""Largest snapshot, decompressed; a million events with their stacks take a tenth of it."""


_WAY_OUT = "dump it again with torch.cuda.memory._dump_snapshot()"
_RECORD_LESS = "record fewer events"
_PLAIN_DATA = f"a memory snapshot is plain data: {_WAY_OUT}"

Row = dict[str, object]


def read_memory_snapshot(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a snapshot; `file` names it in messages.

    Raises InputError where the file is more than plain data, or no snapshot.
    """
    held = unpickle(storage.read_whole(stream, file, LARGEST_BYTES, _RECORD_LESS), file, _PLAIN_DATA)
    segments, histories, settings = _parts(held, file)
    stacks = Stacks()
    events, damaged, unknown = events_table(histories, stacks)
    tables: dict[str, pl.DataFrame] = {
        "memory_events": events,
        "memory_segments": segments_table(segments, stacks),
        "memory_blocks": blocks_table(segments, stacks),
        "memory_settings": _settings_table(settings),
        **stacks.tables(),
    }
    chosen = text(settings.get("PYTORCH_CUDA_ALLOC_CONF") or settings.get("PYTORCH_ALLOC_CONF"))
    attributes = {"cuda_allocator_settings": chosen} if chosen else {}
    return TraceContent(tables, findings=_findings(file, damaged, unknown), attributes=attributes)


def _parts(held: Unpickled, file: str) -> tuple[list[Row], list[object], Row]:
    """Return segments, one history for each device, and settings.

    The oldest layout is the list of segments alone.
    """
    root = held.root if isinstance(held.root, dict) else {"segments": held.root}
    given, traces = root.get("segments"), root.get("device_traces", [])
    segments = mappings(given)
    if not isinstance(given, list | tuple) or len(segments) < len(given):
        raise InputError("is not a memory snapshot: it has no list of segments", where=file, fix=_WAY_OUT)
    if not isinstance(traces, list | tuple):
        raise InputError("is not a memory snapshot: its history is not a list", where=file, fix=_WAY_OUT)
    rows = (
        len(segments) + sum(length(segment.get("blocks")) for segment in segments) + sum(map(length, traces))
    )
    if rows > held.containers:
        message = f"is refused: its {held.containers:,} containers stand for {rows:,} rows"
        raise InputError(message, where=file, fix=_WAY_OUT)
    settings = root.get("allocator_settings")
    return segments, list(traces), settings if isinstance(settings, dict) else {}


def _settings_table(settings: Row) -> pl.DataFrame:
    """Return the settings that are numbers, those of a group as `group.name`."""
    found: dict[str, int | None] = {}
    for name, value in settings.items():
        inner = value if isinstance(value, dict) else {None: value}
        for key, number in inner.items():
            label = str(name) if key is None else f"{name}.{key}"
            found[label[:100]] = int(number) if isinstance(number, bool) else whole(number)
    known = {name: value for name, value in found.items() if value is not None}
    return TABLES["memory_settings"].frame({"name": list(known), "value": list(known.values())})


def _findings(file: str, damaged: int, unknown: list[str]) -> list[Finding]:
    findings = []
    if damaged:
        message = f"{counted(damaged, 'event')} of the allocator cannot be read"
        findings.append(Finding("events-lost", "error", message, file, count=damaged, touches=TABLE_NAMES))
    if unknown:
        message = f"events of the allocator that are not used: {', '.join(unknown[:5])}"
        findings.append(
            Finding("categories-unknown", "note", message, file, count=len(unknown), touches=TABLE_NAMES)
        )
    return findings
