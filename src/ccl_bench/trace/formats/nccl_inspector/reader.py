"""Read the records of the NCCL Inspector, formats v4.0 to v4.4: one timed collective or message a line.

The message of an all-gather or a reduce-scatter is there what one rank gives or gets; the bandwidth beside it
shows which bytes it was computed from, and those are taken. From v4.3 on the header of a marker holds for the
lines after it.

Source: NVIDIA/nccl, ext-profiler/inspector: inspector.cc, README.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.catalog.collectives import canonical
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.values import next_block, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

LONGEST_LINE = 16 << 20
"""Bytes of a line from which on it is none: a record with the events of 64 channels has some thousand."""

_US_NS = 1000
_AGREES = 0.01
"""Share by which a bandwidth may differ from bytes over time: it has six digits after the point."""

_KINDS = {"coll_perf": ("coll", "coll"), "p2p_perf": ("p2p", "p2p")}
"""Key of a record → prefix of its fields, and the field with the operation."""


@dataclass(slots=True)
class _Records:
    """The outcome of reading a file."""

    size: int = 0
    broken_off: str = ""
    unreadable: int = 0
    contradicting: int = 0
    dropped: int = 0
    """Records that the plug-in overwrote before it could write them."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def read_records(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of a file of records; `file` names it in messages."""
    records = _Records()
    for line in _lines(stream, records):
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            records.unreadable += 1
            continue
        if not isinstance(record, dict):
            continue
        # A header and metadata hold for the records after them too.
        if isinstance(record.get("header"), dict):
            records.header = record["header"]
        if isinstance(record.get("metadata"), dict):
            records.metadata = record["metadata"]
        if isinstance(stats := record.get("dump_stats"), dict):
            for kind in ("coll", "p2p"):
                records.dropped += whole(stats.get(f"{kind}_dropped_since_last_dump")) or 0
        for key, (prefix, operation) in _KINDS.items():
            if isinstance(measurement := record.get(key), dict):
                row = _row(measurement, prefix, operation, records)
                records.rows += [row] if row else []
                memory.hold_rows("nccl_records", bool(row))
    table = TABLES["nccl_records"]
    columns = {name: [row.get(name) for row in records.rows] for name in table.columns}
    findings = []
    touches = ("nccl_records",)
    if records.broken_off:
        message = f"reading stopped after {records.size:,} bytes: {records.broken_off}"
        findings.append(Finding("file-broken-off", "error", message, file))
    if count := records.unreadable:
        message = f"{counted(count, 'record is', 'records are')} unreadable"
        findings.append(Finding("events-lost", "error", message, file, count=count))
    if count := records.contradicting:
        subject = counted(count, "record states", "records state")
        message = f"{subject} a bandwidth that contradicts size and time, and are not used"
        findings.append(Finding("records-contradict", "warning", message, file, count=count, touches=touches))
    if count := records.dropped:
        message = f"the NCCL Inspector lost {counted(count, 'record')} before it wrote them"
        findings.append(Finding("records-dropped", "note", message, file, count=count, touches=touches))
    return TraceContent({"nccl_records": table.frame(columns)}, findings=findings)


def _lines(stream: BinaryIO, records: _Records) -> Iterator[bytes]:
    buffer = b""
    while block := next_block(stream, records, len(buffer)):
        *lines, buffer = (buffer + block).split(b"\n")
        yield from filter(bytes.strip, lines)
        if len(buffer) > LONGEST_LINE:
            records.broken_off = "a line of impossible length"
            return
    if buffer.strip():
        yield buffer


def _row(
    measurement: dict[str, Any], prefix: str, operation: str, records: _Records
) -> dict[str, Any] | None:
    """Return one timed operation; None, counted, where it is not whole or contradicts itself."""
    header, metadata = records.header, records.metadata
    name, ranks = measurement.get(operation), whole(header.get("n_ranks"))
    time_us = whole(measurement.get(f"{prefix}_exec_time_us"))
    size = whole(measurement.get(f"{prefix}_msg_size_bytes"))
    collective = canonical(name) if isinstance(name, str) else None
    if collective is None or not time_us or time_us < 0 or size is None or size < 0 or not ranks or ranks < 1:
        records.unreadable += 1
        return None
    # The message of these two is the part of one rank, where no bandwidth shows otherwise.
    size_bytes: int | None = size * ranks if collective in ("all_gather", "reduce_scatter") else size
    bandwidth = measurement.get(f"{prefix}_algobw_gbs")
    if isinstance(bandwidth, int | float) and bandwidth > 0 and size:
        near = max(_AGREES * bandwidth, 1e-6)
        fitting = (each for each in (size, size * ranks) if abs(each / time_us / 1e3 - bandwidth) <= near)
        size_bytes = next(fitting, None)
    if size_bytes is None:
        records.contradicting += 1
        return None
    return {
        "communicator": str(header.get("id", "")),
        "communicator_name": header.get("comm_name") if isinstance(header.get("comm_name"), str) else None,
        "communicator_rank": whole(header.get("rank")),
        "ranks": ranks,
        "nodes": whole(header.get("nnodes")),
        "host": str(metadata.get("hostname", "")),
        "process": whole(metadata.get("pid")),
        "collective": collective,
        "sequence": whole(measurement.get(f"{prefix}_sn")),
        "size_bytes": size_bytes,
        "time_ns": time_us * _US_NS,
        "time_from": str(measurement.get(f"{prefix}_timing_source", "")),
    }
