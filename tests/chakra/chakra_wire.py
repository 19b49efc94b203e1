"""A reader of Chakra files that shares nothing with the writer: protobuf's wire format, decoded by hand.

The numbers are typed a second time from mlcommons/chakra, schema/protobuf/et_def.proto: GlobalMetadata
{version 1, attr 2}, Node {id 1, name 2, type 3, ctrl_deps 4, data_deps 5, start_time_micros 6,
duration_micros 7, inputs 8, outputs 9, attr 10}, IOInfo {values 1, shapes 2, types 3}, AttributeProto
{name 1, int32_val 7, int64_val 9, uint64_val 13, bool_val 27, string_val 29}.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VARINT, SIXTY_FOUR, LENGTH, THIRTY_TWO = 0, 1, 2, 5
METADATA_NODE, COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 1, 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7


@dataclass
class ReadNode:
    """A node as the file has it."""

    id: int = 0
    name: str = ""
    type: int = 0
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    inputs: dict[int, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(raw: bytes) -> dict[int, list[Any]]:
    """Return number → values of a message, integers or bytes."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(raw, at)
            found[number].append(value)
        else:
            size, at = _varint(raw, at) if kind == LENGTH else ({SIXTY_FOUR: 8, THIRTY_TWO: 4}[kind], at)
            found[number].append(raw[at : at + size])
            at += size
    assert at == len(raw)
    return found


def _packed(values: list[Any]) -> list[int]:
    """Return repeated numbers, packed as proto3 does or one by one."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(number)
    return found


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _attribute(raw: bytes) -> tuple[str, Any]:
    fields = _fields(raw)
    name = fields.pop(1)[0].decode()
    ((number, (value,)),) = fields.items()
    readings = {7: _signed, 9: _signed, 13: int, 27: bool, 29: lambda text: text.decode()}
    return name, readings[number](value)


def _node(raw: bytes) -> ReadNode:
    fields = _fields(raw)
    assert set(fields) <= set(range(1, 11))
    return ReadNode(
        id=fields[1][0],
        name=fields[2][0].decode(),
        type=fields[3][0],
        ctrl_deps=_packed(fields[4]),
        data_deps=_packed(fields[5]),
        start_us=sum(fields[6]),
        duration_us=sum(fields[7]),
        inputs={n: v[0].decode() for n, v in _fields(fields[8][0]).items()} if fields[8] else {},
        attributes=dict(_attribute(attribute) for attribute in fields[10]),
    )


def frames(path: Path) -> list[bytes]:
    """Return the messages of a file, each written after its length."""
    raw, at, found = path.read_bytes(), 0, []
    while at < len(raw):
        size, at = _varint(raw, at)
        found.append(raw[at : at + size])
        at += size
    assert at == len(raw)
    return found


def read(path: Path) -> tuple[dict[str, Any], list[ReadNode]]:
    """Return the metadata and the nodes of a file."""
    head, *nodes = frames(path)
    fields = _fields(head)
    assert set(fields) <= {1, 2}
    metadata = dict(_attribute(attribute) for attribute in fields[2])
    return metadata | {"version": fields[1][0].decode()}, [_node(raw) for raw in nodes]


def communication(nodes: list[ReadNode]) -> list[ReadNode]:
    return [node for node in nodes if node.type in (COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE)]
