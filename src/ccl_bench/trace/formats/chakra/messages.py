"""The messages of a Chakra execution trace: each after its length, first the metadata, then the nodes.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (0.0.4) and src/third_party/utils/protolib.py.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ccl_bench.trace.protobuf import DamagedMessageError, Message, field_table, read_varint
from ccl_bench.trace.values import next_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.protobuf import FieldTable

LONGEST = 64 << 20
"""More bytes than any message has: a node with the texts of its operands has some thousand."""

ID, NAME, TYPE, CONTROL, INPUTS, ATTRIBUTES, LAST = 1, 2, 3, 4, 8, 10, 10
"""Fields of a node."""
SHAPES, TYPES = 2, 3
"""Fields of its inputs."""

_FIRST_VALUE = 3
_WIDTHS = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_ZIGZAG, _BOOL, _TEXT = (15, 17), 27, 29


@dataclass(slots=True)
class Reading:
    """What reading a file came to."""

    size: int = 0
    broken_off: str = ""
    rest: int = 0
    """Bytes at the end that are no whole message."""
    lost: int = 0
    """Messages that could not be read."""
    other_fields: int = 0
    """Nodes with fields that the schema does not have."""
    nodes: int = 0


class Node(NamedTuple):
    """One node, with what is looked at."""

    id: int
    name: str
    type: int
    caller: int | None
    """First node that it depends on for control."""
    attributes: dict[str, Any]
    inputs: bytes


@dataclass(slots=True)
class Frames:
    """The places of whole messages in some bytes."""

    data: bytes
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def frames(stream: BinaryIO, reading: Reading) -> Iterator[Frames]:
    """Yield the messages of a file, many at a time."""
    held = b""
    while block := next_block(stream, reading, len(held)):
        found = Frames(held + block)
        place = _cut(found, reading)
        yield found
        held = found.data[place:]
        if reading.broken_off:
            break
    reading.rest = len(held)


def _cut(found: Frames, reading: Reading) -> int:
    """Find the whole messages in the bytes, and return where the rest begins."""
    place, stop = 0, len(found.data)
    while place < stop:
        try:
            size, start = read_varint(found.data, place, stop)
        except DamagedMessageError:
            break
        if size > LONGEST:
            reading.broken_off = "a message of impossible length"
            break
        if start + size > stop:
            break
        found.starts.append(start)
        found.ends.append(start + size)
        place = start + size
    return place


def nodes(found: Frames, reading: Reading) -> list[Node]:
    """Return the nodes in some bytes; those that cannot be read are counted."""
    try:
        table = field_table(found.data, found.starts, found.ends)
        attributes = _attributes(found.data, table)
    except DamagedMessageError:
        return [node for at in range(len(found.starts)) for node in _alone(found, at, reading)]
    count = len(found.starts)
    reading.nodes += count
    reading.other_fields += len({*table.message[(table.number > LAST) | (table.number < 1)].tolist()})
    names, inputs = (_texts(found.data, table.of(number)) for number in (NAME, INPUTS))
    callers = _callers(found.data, table.of(CONTROL))
    ids, kinds = table.values(ID, count).tolist(), table.values(TYPE, count).tolist()
    return [
        Node(
            ids[at],
            names.get(at, b"").decode("utf-8", "replace"),
            kinds[at],
            callers.get(at),
            attributes.get(at, {}),
            inputs.get(at, b""),
        )
        for at in range(count)
    ]


def _alone(found: Frames, at: int, reading: Reading) -> list[Node]:
    """Return one node, none where it cannot be read."""
    one = Frames(found.data, found.starts[at : at + 1], found.ends[at : at + 1])
    try:
        _attributes(found.data, field_table(one.data, one.starts, one.ends))
    except DamagedMessageError:
        reading.lost += 1
        return []
    return nodes(one, reading)


def _texts(data: bytes, table: FieldTable) -> dict[int, bytes]:
    rows = zip(table.message.tolist(), table.value.tolist(), table.end.tolist(), strict=True)
    return {message: data[start:end] for message, start, end in rows if end}


def _callers(data: bytes, table: FieldTable) -> dict[int, int]:
    """Return the first of the numbers of each message, packed or not."""
    found: dict[int, int] = {}
    for message, value, end in zip(
        table.message.tolist(), table.value.tolist(), table.end.tolist(), strict=True
    ):
        if not end:
            found.setdefault(message, value)
        elif value < end:
            found.setdefault(message, read_varint(data, value, end)[0])
    return found


def _attributes(data: bytes, table: FieldTable) -> dict[int, dict[str, Any]]:
    """Return the named values of each message that has some."""
    own = table.of(ATTRIBUTES)
    inner = field_table(data, own.value, own.end)
    values: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    columns = (inner.message, inner.number, inner.value, inner.end)
    for message, number, value, end in zip(*(column.tolist() for column in columns), strict=True):
        values[message].append((number, value, end))
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for place, owner in enumerate(own.message.tolist()):
        name, value = _named(data, values[place])
        found[owner][name] = value
    return found


def attribute(message: Message) -> tuple[str, Any]:
    """Return name and value of an attribute in a message of its own; None for a list of values."""
    numbers = [number for number in range(_FIRST_VALUE, _FIRST_VALUE + 30) if number in message]
    fields = [(number, each.value, each.end) for number in numbers for each in message.each(number)]
    return message.text(NAME_OF_ATTRIBUTE), _named(message.data, fields)[1]


NAME_OF_ATTRIBUTE = 1


def _named(data: bytes, fields: list[tuple[int, int, int]]) -> tuple[str, Any]:
    name, found = "", None
    for number, value, end in fields:
        if number == NAME_OF_ATTRIBUTE and end:
            name = data[value:end].decode("utf-8", "replace")
        elif number >= _FIRST_VALUE and number % 2:
            found = _value(data, number, value, end)
    return name, found


def _value(data: bytes, number: int, value: int, end: int) -> Any:
    """Return a value that is no list; None where it is not written as its kind is."""
    if number in _WIDTHS:
        kind = _WIDTHS[number]
        is_whole = end - value == struct.calcsize(kind)
        return struct.unpack(kind, data[value:end])[0] if is_whole else None
    if number == _TEXT:
        return data[value:end].decode("utf-8", "replace") if end else None
    if end:
        return None
    if number in _ZIGZAG:
        return (value >> 1 & (1 << 63) - 1) ^ -(value & 1)
    return bool(value) if number == _BOOL else value
