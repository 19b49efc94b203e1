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
class _Reading:
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
    reading = _Reading()
    for line in _lines(stream, reading):
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reading.unreadable += 1
            continue
        if isinstance(record, dict):
            _take(record, reading)
    table = TABLES["nccl_records"]
    columns = {name: [row.get(name) for row in reading.rows] for name in table.columns}
    return TraceContent({"nccl_records": table.frame(columns)}, findings=[*_findings(reading, file)])


def _lines(stream: BinaryIO, reading: _Reading) -> Iterator[bytes]:
    buffer = b""
    while block := next_block(stream, reading, len(buffer)):
        *lines, buffer = (buffer + block).split(b"\n")
        yield from filter(bytes.strip, lines)
        if len(buffer) > LONGEST_LINE:
            reading.broken_off = "a line of impossible length"
            return
    if buffer.strip():
        yield buffer


def _take(record: dict[str, Any], reading: _Reading) -> None:
    """Take one line: a record, or the values that hold for the records after it."""
    for key in ("header", "metadata"):
        if isinstance(record.get(key), dict):
            setattr(reading, key, record[key])
    if isinstance(stats := record.get("dump_stats"), dict):
        kinds = ("coll", "p2p")
        reading.dropped += sum(whole(stats.get(f"{kind}_dropped_since_last_dump")) or 0 for kind in kinds)
    for key, (prefix, operation) in _KINDS.items():
        if isinstance(measurement := record.get(key), dict):
            row = _row(measurement, prefix, operation, reading)
            reading.rows += [row] if row else []
            memory.hold_rows("nccl_records", bool(row))


def _row(
    measurement: dict[str, Any], prefix: str, operation: str, reading: _Reading
) -> dict[str, Any] | None:
    """Return one timed operation; None, counted, where it is not whole or contradicts itself."""
    header, metadata = reading.header, reading.metadata
    name = measurement.get(operation)
    time_us, size = (
        whole(measurement.get(f"{prefix}_exec_time_us")),
        whole(measurement.get(f"{prefix}_msg_size_bytes")),
    )
    ranks, sequence = whole(header.get("n_ranks")), whole(measurement.get(f"{prefix}_sn"))
    collective = canonical(name) if isinstance(name, str) else None
    if collective is None or not time_us or time_us < 0 or size is None or size < 0 or not ranks or ranks < 1:
        reading.unreadable += 1
        return None
    bandwidth = measurement.get(f"{prefix}_algobw_gbs")
    whole_size = size * ranks if collective in _BY_RANK else size
    size_bytes: int | None = whole_size
    if isinstance(bandwidth, int | float) and bandwidth > 0 and size:
        size_bytes = _size_of_bandwidth((size, size * ranks), time_us, bandwidth)
    if size_bytes is None:
        reading.contradicting += 1
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
        "sequence": sequence,
        "size_bytes": size_bytes,
        "time_ns": time_us * _US_NS,
        "time_from": str(measurement.get(f"{prefix}_timing_source", "")),
    }


_BY_RANK = ("all_gather", "reduce_scatter")
"""Collectives whose message is there the part of one rank, where no bandwidth shows otherwise."""


def _size_of_bandwidth(sizes: tuple[int, ...], time_us: int, bandwidth: float) -> int | None:
    """Return the size that a stated bandwidth, GB/s, was computed from; None if it fits none."""
    fits = (size for size in sizes if abs(size / time_us / 1e3 - bandwidth) <= max(_AGREES * bandwidth, 1e-6))
    return next(fits, None)


def _findings(reading: _Reading, file: str) -> Iterator[Finding]:
    touches = ("nccl_records",)
    if reading.broken_off:
        message = f"reading stopped after {reading.size:,} bytes: {reading.broken_off}"
        yield Finding("file-broken-off", "error", message, file)
    if reading.unreadable:
        message = f"{counted(reading.unreadable, 'record is', 'records are')} unreadable"
        yield Finding("events-lost", "error", message, file, count=reading.unreadable)
    if reading.contradicting:
        message = (
            f"{counted(reading.contradicting, 'record states', 'records state')} a bandwidth that "
            "contradicts size and time, and are not used"
        )
        count = reading.contradicting
        yield Finding("records-contradict", "warning", message, file, count=count, touches=touches)
    if reading.dropped:
        message = f"the NCCL Inspector lost {counted(reading.dropped, 'record')} before it wrote them"
        yield Finding("records-dropped", "note", message, file, count=reading.dropped, touches=touches)
