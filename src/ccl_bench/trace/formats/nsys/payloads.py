"""What NCCL says of a call in the payload of its NVTX range, for exports that hold payloads.

A payload is one or more records: a header of 32 bytes, little-endian (domain, schema, size of the
data, size with header), then the data, whose fields `NVTX_PAYLOAD_SCHEMA_ENTRIES` describes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.trace.formats.nsys.database import Database

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


def schemas(database: Database) -> Schemas:
    """Return the fields of each schema that are whole numbers."""
    kinds = dict.fromkeys(("domainId", "schemaId", "type", "offset"), "integer") | {"name": "text"}
    entries = database.frame("NVTX_PAYLOAD_SCHEMA_ENTRIES", kinds)
    found: Schemas = {}
    for domain, schema, kind, offset, name in entries.iter_rows():
        if None not in (domain, schema, name) and kind in _TYPES and 0 <= (offset or 0) < 1 << 16:
            found.setdefault((domain, schema), []).append((name, offset or 0, _TYPES[kind]))
    return found


def fields(payload: bytes | None, known: Schemas) -> dict[str, int]:
    """Return the fields of a payload by name; those that cannot be decoded are absent."""
    return {name: value for part in _records(payload or b"", known) for name, value in part}


def _records(payload: bytes, known: Schemas) -> Iterator[list[tuple[str, int]]]:
    for _ in range(_MOST_RECORDS):
        if len(payload) < _HEADER.size:
            return
        domain, schema, size, whole = _HEADER.unpack_from(payload)
        if whole != _HEADER.size + size or whole > len(payload):
            return
        data = payload[_HEADER.size : whole]
        yield [
            (name, struct.unpack_from(layout, data, offset)[0])
            for name, offset, layout in known.get((domain, schema), ())
            if offset + struct.calcsize(layout) <= size
        ]
        payload = payload[whole:]
