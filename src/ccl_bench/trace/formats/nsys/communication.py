"""Communication calls of one process, as PyTorch, NCCL and MPI marked them on the CPU.

- `nccl:*`, `record_param_comms` and `c10d::*` are ranges that PyTorch marks under `emit_nvtx`.
- `ncclAllReduce` and the like are ranges of NCCL itself, with sizes where the export holds payloads: one or
  more records of a header of 32 bytes, little-endian (domain, schema, size of the data, size with header),
  then the data, whose fields `NVTX_PAYLOAD_SCHEMA_ENTRIES` describes.
- `MPI_*` are ranges of MPI, in tables of their own or, in older versions, among the NVTX ranges.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import collectives as catalogue
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys import host
from ccl_bench.trace.formats.nsys.database import in_order, since_epoch
from ccl_bench.trace.formats.nsys.processes import THREAD, rows_of

if TYPE_CHECKING:
    from ccl_bench.trace.formats.nsys.processes import ReportProcess
    from ccl_bench.trace.sqlite import Database

COMMUNICATOR = "NCCL communicator ID"
MESSAGE_BYTES = "Message size [bytes]"
MEMBERS = "No. of ranks"
PEER = "Peer rank"

_HEADER = struct.Struct("<I4xI4xQQ")
_TYPES = {5: "<i", 6: "<I", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
"""`NVTX_PAYLOAD_ENTRY_TYPE_*` of the whole numbers that NCCL uses → layout."""

_MOST_RECORDS = 64

Schemas = dict[tuple[int, int], list[tuple[str, int, str]]]
"""(domain, schema) → name, offset and layout of each field."""


def payload_schemas(database: Database) -> Schemas:
    """Return the fields of each schema that are whole numbers."""
    kinds = dict.fromkeys(("domainId", "schemaId", "type", "offset"), "integer") | {"name": "text"}
    entries = database.frame("NVTX_PAYLOAD_SCHEMA_ENTRIES", kinds)
    schemas: Schemas = {}
    for domain, schema, kind, offset, name in entries.iter_rows():
        if None not in (domain, schema, name) and kind in _TYPES and 0 <= (offset or 0) < 1 << 16:
            schemas.setdefault((domain, schema), []).append((name, offset or 0, _TYPES[kind]))
    return schemas


def payload_fields(payload: bytes | None, schemas: Schemas) -> dict[str, int]:
    """Return the fields of a payload by name; those that cannot be decoded are absent."""
    fields: dict[str, int] = {}
    rest = payload or b""
    for _ in range(_MOST_RECORDS):
        if len(rest) < _HEADER.size:
            break
        domain, schema, size, whole = _HEADER.unpack_from(rest)
        if whole != _HEADER.size + size or whole > len(rest):
            break
        data, rest = rest[_HEADER.size : whole], rest[whole:]
        for name, offset, layout in schemas.get((domain, schema), ()):
            if offset + struct.calcsize(layout) <= size:
                fields[name] = struct.unpack_from(layout, data, offset)[0]
    return fields


_LONGEST_PAYLOAD = 1 << 12

_BYTE = "uint8"
"""Sizes in bytes are counts of these."""

_FROM_PYTORCH = {"nccl:": "nccl", "gloo:": "gloo", "record_param_comms": "host", "c10d::": "op"}
_SIZES = re.compile(r", sizes = \[\[([\d, ]+)\]")
_GATHERED = ("all_gather", "gather")
"""NCCL is given what one member contributes; the other side is as many times that as there are members."""
_SCATTERED = ("reduce_scatter", "scatter")


def collectives(
    database: Database, process: ReportProcess, ranges: pl.DataFrame, base_ns: int
) -> pl.DataFrame:
    """Return the `collectives` rows of one process; `ranges` are its ranges as `host.ranges` gives them."""
    ended_ranges = ranges.drop_nulls("end_ns")
    mpi_tables = [table for table in ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS") if table in database]
    parts = []
    if ended_ranges.height:
        for prefix, source in _FROM_PYTORCH.items():
            rows = _starting_with(ended_ranges, prefix)
            parts.append(_rows(source, rows, in_elements=[_elements(text) for text in rows["text"]]))
        parts.append(_by_nccl(ended_ranges, _payloads(database, process, base_ns)))
        if not mpi_tables:
            rows = _starting_with(ended_ranges, "MPI_")
            words = {name: name.removeprefix("MPI_") for name in rows["name"].unique()}
            calls = [
                name
                for name, word in words.items()
                if catalogue.canonical(word) or catalogue.canonical(word.removeprefix("I"))
            ]
            parts.append(_rows("mpi", rows.filter(pl.col("name").is_in(calls))))
    parts += [_mpi_calls(database, process, table, base_ns) for table in mpi_tables]
    return in_order(pl.concat([part for part in parts if part.height] or [TABLES["collectives"].empty()]))


def _rows(source: str, calls: pl.DataFrame, **arguments: list[object]) -> pl.DataFrame:
    """Return ranges that are calls as rows; `arguments` are further columns."""
    columns = {name: calls[name] for name in ("start_ns", "end_ns", "name", "thread")}
    return TABLES["collectives"].frame({**columns, "source": [source] * calls.height, **arguments})


def _starting_with(ranges: pl.DataFrame, prefix: str) -> pl.DataFrame:
    """Return ranges whose name begins in one way, as text."""
    rows = ranges.filter(pl.col("name").cat.starts_with(prefix))
    return rows.with_columns(pl.col("name").cast(pl.String))


def _elements(text: str) -> int | None:
    """Return the elements in the first tensor of a range with recorded shapes."""
    match = _SIZES.search(text)
    product = math.prod(int(side) for side in re.findall(r"\d{1,18}", match[1])) if match else None
    return product if product is not None and product < 2**62 else None


def _payloads(
    database: Database, process: ReportProcess, base_ns: int
) -> dict[tuple[int, int], dict[str, int]]:
    """Return (start, thread) → fields for the NVTX ranges with a payload."""
    schemas = payload_schemas(database)
    if not schemas or not database.has(host.NVTX, "binaryData"):
        return {}
    only = replace(rows_of(database, host.NVTX, process), brief=("binaryData", _LONGEST_PAYLOAD - 1))
    kinds = {"start": "integer", "globalTid": "integer", "binaryData": "blob"}
    rows = database.frame(host.NVTX, kinds, only).with_columns(since_epoch("start", base_ns))
    return {
        (start, thread & THREAD): payload_fields(payload, schemas)
        for start, thread, payload in rows.drop_nulls().iter_rows()
    }


def _by_nccl(ranges: pl.DataFrame, payloads: dict[tuple[int, int], dict[str, int]]) -> pl.DataFrame:
    """Return the calls of NCCL's own interface, with the arguments in their payloads."""
    rows = _starting_with(ranges, "nccl")
    names = rows["name"].str.strip_prefix("nccl")
    canonical = {name: catalogue.canonical(name) if name[:1].isupper() else None for name in names.unique()}
    calls = rows.filter(pl.Series([canonical[name] is not None for name in names], dtype=pl.Boolean))
    if not payloads:
        return _rows("library", calls)
    members: dict[int, int] = {}
    arguments = []
    for start, thread, name in zip(rows["start_ns"], rows["thread"], names, strict=True):
        payload = payloads.get((start, thread), {})
        if MEMBERS in payload and COMMUNICATOR in payload:
            members[payload[COMMUNICATOR]] = payload[MEMBERS]
        if collective := canonical[name]:
            arguments.append(_arguments(collective, payload, members))
    keys = dict.fromkeys(key for call_arguments in arguments for key in call_arguments)
    return _rows(
        "library", calls, **{key: [call_arguments.get(key) for call_arguments in arguments] for key in keys}
    )


def _arguments(collective: str, payload: dict[str, int], members: dict[int, int]) -> dict[str, object]:
    communicator, size = payload.get(COMMUNICATOR), payload.get(MESSAGE_BYTES)
    count = members.get(communicator) if communicator is not None else None
    arguments: dict[str, object] = {
        "group_size": count,
        "communicator": None if communicator is None else str(communicator),
        "peer_position": payload.get(PEER),
    }
    if size is None or not 0 <= size < 2**48:
        return arguments
    total = size * count if count and 0 < count < 2**14 else None
    sent, received = size, size
    if collective in _GATHERED:
        return arguments | {"dtype": _BYTE, "in_elements": sent, "out_elements": total}
    if collective in _SCATTERED:
        return arguments | {"dtype": _BYTE, "in_elements": total, "out_elements": received}
    if collective == "all_to_all":
        return arguments | {"dtype": _BYTE, "in_elements": total, "out_elements": total}
    return arguments | {
        "dtype": _BYTE,
        "in_elements": None if collective == "recv" else sent,
        "out_elements": None if collective == "send" else received,
    }


def _mpi_calls(database: Database, process: ReportProcess, table: str, base_ns: int) -> pl.DataFrame:
    kinds = dict.fromkeys(
        ("start", "end", "globalTid", "textId", "commHandle", "remoteRank", "size", "recvSize"), "integer"
    )
    calls = database.frame(table, kinds, rows_of(database, table, process))
    names = database.strings(calls["textId"]).fill_null(host.UNNAMED)
    receives = names.str.contains(r"(?i)^MPI_\w*recv")
    is_message = "P2P" in table
    size = pl.when(pl.col("size") >= 0).then("size")
    sides = (
        (pl.when(~receives).then(size), pl.when(receives).then(size))
        if is_message
        else (size, pl.when(pl.col("recvSize") >= 0).then("recvSize"))
    )
    rows = calls.select(
        since_epoch("start", base_ns).alias("start_ns"),
        since_epoch("end", base_ns).alias("end_ns"),
        pl.lit("mpi").alias("source"),
        names.alias("name"),
        (pl.col("globalTid") & THREAD).alias("thread"),
        pl.lit(_BYTE).alias("dtype"),
        sides[0].alias("in_elements"),
        sides[1].alias("out_elements"),
        pl.col("commHandle").cast(pl.String).alias("communicator"),
        pl.when(pl.col("remoteRank") >= 0).then("remoteRank").alias("peer"),
    )
    return TABLES["collectives"].frame(rows.to_dict())
