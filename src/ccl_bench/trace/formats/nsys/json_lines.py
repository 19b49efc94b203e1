"""The JSON export of a report, made into a database with the tables that a SQLite export has.

`nsys export --type json` writes one object a line: first the texts that events name by their number, then the
events. It holds neither the start of the session nor the devices' names.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.text import json_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_LOST = "LINES_LOST"
"""Setting of the database that says how many lines could not be read."""

LONGEST_LINE = 256 << 20
"""A longer line is refused; that of all texts takes some megabytes."""

MOST_BYTES = 64 << 30
"""A file that holds more, decompressed, is refused."""

_ROWS_AT_A_TIME = 1 << 14

_Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None


class _Kernel(Struct):
    demangledName: _Whole = None  # noqa: N815 (keys of the file)
    shortName: _Whole = None  # noqa: N815
    gridX: _Whole = None  # noqa: N815
    gridY: _Whole = None  # noqa: N815
    gridZ: _Whole = None  # noqa: N815
    blockX: _Whole = None  # noqa: N815
    blockY: _Whole = None  # noqa: N815
    blockZ: _Whole = None  # noqa: N815
    staticSharedMemory: _Whole = None  # noqa: N815
    dynamicSharedMemory: _Whole = None  # noqa: N815
    registersPerThread: _Whole = None  # noqa: N815


class _Moved(Struct):
    sizebytes: _Whole = None
    copyKind: _Whole = None  # noqa: N815


class _Work(Struct):
    """One piece of work on a device."""

    startNs: _Whole = None  # noqa: N815
    endNs: _Whole = None  # noqa: N815
    deviceId: _Whole = None  # noqa: N815
    streamId: _Whole = None  # noqa: N815
    correlationId: _Whole = None  # noqa: N815
    globalPid: _Whole = None  # noqa: N815
    kernel: _Kernel | UnsetType = UNSET
    memcpy: _Moved | UnsetType = UNSET
    memset: _Moved | UnsetType = UNSET


class _ApiCall(Struct):
    """One call of the CUDA runtime or driver, or of the profiler itself."""

    startNs: _Whole = None  # noqa: N815
    endNs: _Whole = None  # noqa: N815
    correlationId: _Whole = None  # noqa: N815
    eventClass: _Whole = None  # noqa: N815
    name: _Whole = None
    globalTid: _Whole = None  # noqa: N815


class _Range(Struct):
    """One range, mark or name of NVTX."""

    Type: _Whole = None
    Timestamp: _Whole = None
    EndTimestamp: _Whole = None
    Text: str | None = None
    TextId: _Whole = None
    GlobalTid: _Whole = None
    DomainId: _Whole = None


class _ExportLine(Struct):
    CudaEvent: _Work | UnsetType = UNSET
    TraceProcessEvent: _ApiCall | UnsetType = UNSET
    NvtxEvent: _Range | UnsetType = UNSET
    data: list[Any] = []


_USED = (b'"CudaEvent"', b'"TraceProcessEvent"', b'"NvtxEvent"', b'"data"')

_WORK = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_TABLES = {
    "StringIds": ("id", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_WORK, *_Kernel.__struct_fields__),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_WORK, "bytes", "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_WORK, "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "correlationId", "nameId", "globalTid"),
    "NVTX_EVENTS": ("eventType", "start", "end", "text", "textId", "globalTid", "domainId"),
}
"""Tables of the database and their columns, named as in a SQLite export."""

_RUNTIME, _DRIVER = 0, 1
"""Classes of calls that are of CUDA."""


def number_of_lost_lines(settings: Mapping[str, str]) -> int:
    """Return the number of unreadable lines of the JSON export behind a database."""
    count = settings.get(_LOST, "")
    return int(count) if count.isdecimal() and len(count) < len(str(MOST_BYTES)) else 0


def write_database(source: Path, output: Path, name: str) -> None:
    """Write the database of a JSON export; `name` names it in messages.

    Lines that cannot be read are left out and counted. Raises InputError for one that is too long.
    """
    with closing(sqlite3.connect(output, isolation_level=None)) as database:
        for guard in ("journal_mode=OFF", "synchronous=OFF"):
            database.execute(f"PRAGMA {guard}").close()
        for table, columns in _TABLES.items():
            quoted_names = ", ".join(f"'{column}'" for column in columns)
            database.execute(f"CREATE TABLE {table} ({quoted_names})")
        database.execute("BEGIN")
        rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _TABLES}
        for count, (table, row) in enumerate(_rows(source, name), 1):
            rows[table].append(row)
            if not count % _ROWS_AT_A_TIME:
                _insert(database, rows)
        _insert(database, rows)
        database.execute("COMMIT")


def _insert(database: sqlite3.Connection, rows: dict[str, list[tuple[object, ...]]]) -> None:
    for table, columns in _TABLES.items():
        marks = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])  # noqa: S608 (our names)
        rows[table].clear()


_DECODER = json_decoder(_ExportLine, strict=False)


def _rows(source: Path, name: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the rows of each table, and last how many lines were lost."""
    lost, has_texts = 0, False
    for line in _lines(source, name):
        if not any(mark in line for mark in _USED):
            lost += not line.rstrip().endswith(b"}")
            continue
        try:
            event = _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            lost += 1
            continue
        if event.data and not has_texts:
            has_texts = True
            yield from (("StringIds", (n, text)) for n, text in enumerate(event.data) if type(text) is str)
        work, call, mark = event.CudaEvent, event.TraceProcessEvent, event.NvtxEvent
        if work is not UNSET:
            common = (
                work.startNs,
                work.endNs,
                work.deviceId,
                work.streamId,
                work.correlationId,
                work.globalPid,
            )
            if work.kernel is not UNSET:
                yield "CUPTI_ACTIVITY_KIND_KERNEL", (*common, *msgspec.structs.astuple(work.kernel))
            elif work.memcpy is not UNSET:
                yield "CUPTI_ACTIVITY_KIND_MEMCPY", (*common, work.memcpy.sizebytes, work.memcpy.copyKind)
            elif work.memset is not UNSET:
                yield "CUPTI_ACTIVITY_KIND_MEMSET", (*common, work.memset.sizebytes)
        elif call is not UNSET and call.eventClass in {_RUNTIME, _DRIVER}:
            row = (call.startNs, call.endNs, call.correlationId, call.name, call.globalTid)
            yield "CUPTI_ACTIVITY_KIND_RUNTIME", row
        elif mark is not UNSET:
            times, texts = (mark.Timestamp, mark.EndTimestamp), (mark.Text, mark.TextId)
            yield "NVTX_EVENTS", (mark.Type, *times, *texts, mark.GlobalTid, mark.DomainId)
    yield "META_DATA_EXPORT", (_LOST, str(lost))


def _lines(source: Path, name: str) -> Iterator[bytes]:
    """Yield the lines up to the end, or to where a compressed file is damaged."""
    size = 0
    with storage.open_file(source) as stream:
        while True:
            try:
                line = stream.readline(LONGEST_LINE + 1)
            except storage.DAMAGED:
                return
            size += len(line)
            if len(line) > LONGEST_LINE or size > MOST_BYTES:
                fix = "export the report again: nsys export --type sqlite"
                raise InputError("holds more than any export does", where=name, fix=fix)
            if not line:
                return
            if not line.isspace():
                yield line
