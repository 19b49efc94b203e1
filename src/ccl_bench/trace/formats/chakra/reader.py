"""Reader of Chakra execution traces into the tables of Execution Traces: one pass in bounded memory.

Its times stay unread: durations are exclusive, in whole microseconds, and no step is a range of time.

The messages follow each other, each after its length: first the metadata, then the nodes.
Source: mlcommons/chakra, schema/protobuf/et_def.proto (0.0.4) and src/third_party/utils/protolib.py.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.process_groups import OPERATOR, listed_groups
from ccl_bench.trace.protobuf import DamagedMessageError, Message, field_table, read_varint
from ccl_bench.trace.values import (
    FACTORS,
    json_list,
    matrix_sizes,
    next_block,
    table_of,
    text_or_none,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.protobuf import FieldTable

LONGEST = 64 << 20
"""More bytes than any message has: a node with the texts of its operands has some thousand."""

ID, NAME, TYPE, CONTROL, INPUTS, ATTRIBUTES, LAST = 1, 2, 3, 4, 8, 10, 10
"""Fields of a node."""
VALUES, SHAPES, TYPES = 1, 2, 3
"""Fields of its inputs."""


@dataclass(slots=True)
class ChakraProgress:
    """How far a file was read, and what was lost of it."""

    size: int = 0
    """Bytes read, after decompression."""
    broken_off: str = ""
    """Why reading stopped before the end of the file, if it did."""
    rest_bytes: int = 0
    """Bytes at the end that are no whole message."""
    lost: int = 0
    """Messages that could not be read."""
    nodes: int = 0
    other_fields: int = 0
    """Nodes with fields that the schema does not have."""


class Frames(NamedTuple):
    """The places of whole messages in some bytes."""

    data: bytes
    starts: list[int]
    ends: list[int]


def frames(stream: BinaryIO, progress: ChakraProgress) -> Iterator[Frames]:
    """Yield the messages of a file, many at a time."""
    rest = b""
    while block := next_block(stream, progress, len(rest)):
        piece = Frames(rest + block, [], [])
        place, stop = 0, len(piece.data)
        while place < stop:
            try:
                size, start = read_varint(piece.data, place, stop)
            except DamagedMessageError:  # cut within the number, which goes on in the next block
                break
            if size > LONGEST:
                progress.broken_off = "a message of impossible length"
                break
            if start + size > stop:
                break
            piece.starts.append(start)
            piece.ends.append(start + size)
            place = start + size
        yield piece
        rest = piece.data[place:]
        if progress.broken_off:
            break
    progress.rest_bytes = len(rest)


class ChakraNode(NamedTuple):
    """One node, with the fields that the reader uses."""

    id: int
    name: str
    type: int
    caller: int | None
    """First node that it depends on for control."""
    attributes: dict[str, Any]
    inputs: bytes


def nodes(piece: Frames, progress: ChakraProgress) -> list[ChakraNode]:
    """Return the nodes in some bytes; those that cannot be read are counted."""
    data, count = piece.data, len(piece.starts)
    try:
        table = field_table(data, piece.starts, piece.ends)
        attributes = _attributes(data, table)
    except DamagedMessageError:
        if count == 1:
            progress.lost += 1
            return []
        single = (Frames(data, [start], [end]) for start, end in zip(*piece[1:], strict=True))
        return [node for frame in single for node in nodes(frame, progress)]
    progress.nodes += count
    progress.other_fields += len({*table.message[(table.number > LAST) | (table.number < 1)].tolist()})
    names, inputs = (
        {message: data[start:end] for message, start, end in _values(table.of(number)) if end}
        for number in (NAME, INPUTS)
    )
    callers: dict[int, int] = {}
    for message, value, end in _values(table.of(CONTROL)):
        if not end:
            callers.setdefault(message, value)
        elif value < end:  # packed
            callers.setdefault(message, read_varint(data, value, end)[0])
    ids, kinds = table.values(ID, count).tolist(), table.values(TYPE, count).tolist()
    return [
        ChakraNode(
            ids[at],
            names.get(at, b"").decode("utf-8", "replace"),
            kinds[at],
            callers.get(at),
            attributes.get(at, {}),
            inputs.get(at, b""),
        )
        for at in range(count)
    ]


def _values(table: FieldTable) -> Iterator[tuple[int, int, int]]:
    return zip(table.message.tolist(), table.value.tolist(), table.end.tolist(), strict=True)


def _attributes(data: bytes, table: FieldTable) -> dict[int, dict[str, Any]]:
    """Return the named values of each message that has some."""
    attribute_fields = table.of(ATTRIBUTES)
    inner = field_table(data, attribute_fields.value, attribute_fields.end)
    values: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (message, value, end), number in zip(_values(inner), inner.number.tolist(), strict=True):
        values[message].append((number, value, end))
    attributes: dict[int, dict[str, Any]] = defaultdict(dict)
    for place, owner in enumerate(attribute_fields.message.tolist()):
        name, value = _name_and_value(data, values[place])
        attributes[owner][name] = value
    return attributes


NAME_OF_ATTRIBUTE, _FIRST_VALUE = 1, 3
_WIDTHS = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_ZIGZAG, _BOOL, _TEXT = (15, 17), 27, 29


def attribute(message: Message) -> tuple[str, Any]:
    """Return name and value of an attribute in a message of its own; None for a list of values."""
    numbers = [number for number in range(_FIRST_VALUE, _FIRST_VALUE + 30) if number in message]
    fields = [(number, part.value, part.end) for number in numbers for part in message.each(number)]
    return message.text(NAME_OF_ATTRIBUTE), _name_and_value(message.data, fields)[1]


def _name_and_value(data: bytes, fields: list[tuple[int, int, int]]) -> tuple[str, Any]:
    name, result = "", None
    for number, value, end in fields:
        if number == NAME_OF_ATTRIBUTE and end:
            name = data[value:end].decode("utf-8", "replace")
        elif number >= _FIRST_VALUE and number % 2:
            result = _value(data, number, value, end)
    return name, result


def _value(data: bytes, number: int, value: int, end: int) -> Any:
    """Return a value that is no list; None if it is not written as its kind is."""
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


_NUMBERS = {
    "forward_parent": "fw_parent",
    "rf_id": "rf_id",
    "sequence_number": "seq_id",
    "scope": "scope",
    "thread": "tid",
    "forward_thread": "fw_tid",
}
"""Column of `et_nodes` → attribute, as Chakra's converter names them."""

_SEND, _RECEIVE, _COLLECTIVE = 5, 6, 7
_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "barrier"),
)
"""Names of `CollectiveCommType` by number; the block of `REDUCE_SCATTER_BLOCK` is MPI's word."""

_BYTE = "uint8"
"""Element type of a message whose file states none: it is counted in bytes."""

_QUOTED = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")


@dataclass(slots=True)
class _ChakraRows:
    """The rows of one file while they are gathered."""

    operators: list[pl.DataFrame] = field(default_factory=list)
    device_work: list[pl.DataFrame] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    products: list[dict[str, object]] = field(default_factory=list)
    groups: dict[str, dict[str, object]] = field(default_factory=dict)

    def add(self, batch: list[ChakraNode]) -> None:
        """Take the nodes of one piece."""
        memory.hold_rows("et_nodes", len(batch))
        for parts, of_device in ((self.operators, False), (self.device_work, True)):
            part = [node for node in batch if (node.attributes.get("is_cpu_op") is False) is of_device]
            columns: dict[str, list[Any]] = {
                "node": [_number(node.id) for node in part],
                "name": [node.name for node in part],
                "parent": [_number(node.caller) for node in part],
            }
            for column, name in _NUMBERS.items():
                columns[column] = [whole(node.attributes.get(name)) for node in part]
            parts.append(TABLES["et_nodes"].frame(columns))
        for node in batch:
            if _SEND <= node.type <= _COLLECTIVE:
                self.calls.append(_call(node))
            if node.name in FACTORS:
                self.products.append(_product(node))
            elif OPERATOR in node.name:
                text = next(iter(json_list(_inputs(node).text(VALUES))), None)
                self.groups |= {str(group["name"]): group for group in listed_groups(text)}

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return every table; work of a device is no operator, unless the file holds nothing else.

        A call has the description and size of its group, and a message the place of the other rank in it.
        """
        for call in self.calls:
            peer, group = call.pop("peer", None), self.groups.get(str(call["group_name"]), {})
            call["group_description"] = group.get("description")
            if call["group_size"] is None:
                call["group_size"] = group.get("size")
            ranks = group.get("ranks")
            if peer is not None:
                call["rank_argument"] = (
                    ranks.index(peer) if isinstance(ranks, list) and peer in ranks else peer
                )
        table = TABLES["et_nodes"].concat(self.operators)
        if table.is_empty():
            table = TABLES["et_nodes"].concat(self.device_work)
        return {
            "et_nodes": table.sort("node", maintain_order=True, nulls_last=True),
            "et_products": table_of("et_products", self.products),
            "et_communication": table_of("et_communication", self.calls).sort("node", nulls_last=True),
            "et_groups": table_of("et_groups", [*self.groups.values()]),
        }


def _number(value: int | None) -> int | None:
    """Return the number of a node; those that do not fit a column are none."""
    return None if value is None else whole(value if value >= 0 else None)


def _call(node: ChakraNode) -> dict[str, Any]:
    """Return one send, receive or collective; work of a device counts where it was launched."""
    attributes = node.attributes
    is_launched = attributes.get("is_cpu_op") is False and node.caller is not None
    if node.type == _COLLECTIVE:
        kind = whole(attributes.get("comm_type"))
        name = _COLLECTIVES[kind] if kind is not None and 0 <= kind < len(_COLLECTIVES) else node.name
    else:
        name = "send" if node.type == _SEND else "recv"
    row: dict[str, Any] = {
        "node": _number(node.caller if is_launched else node.id),
        "name": name,
        "group_name": text_or_none(attributes.get("pg_name")),
        "rf_id": whole(attributes.get("rf_id")),
        "group_size": whole(attributes.get("pg_size")),
    }
    size = whole(attributes.get("comm_size"))
    if size is not None and size > 0:
        dtype = attributes.get("dtype")
        try:
            width = width_bytes(dtype) if isinstance(dtype, str) else 0
        except NotMeasurable:
            width = 0
        side = "out" if node.type == _RECEIVE else "in"
        row |= {f"{side}_bytes": size, f"{side}_elements": size, "dtype": _BYTE}
        if width and size % width == 0:
            row |= {f"{side}_elements": round(size / width), "dtype": dtype}
    if node.type != _COLLECTIVE:
        row["peer"] = whole(attributes.get("comm_src" if node.type == _RECEIVE else "comm_dst"))
    return row


def _product(node: ChakraNode) -> dict[str, object]:
    """Return one product of matrices; sizes are absent where the shapes do not fit."""
    inputs, first = _inputs(node), FACTORS[node.name]
    types = [single or double for single, double in _QUOTED.findall(inputs.text(TYPES))]
    match = _TENSOR.fullmatch(types[first]) if len(types) > first else None
    row = {"node": _number(node.id), "name": node.name, "dtype": match[1] if match else None}
    return row | matrix_sizes(json_list(inputs.text(SHAPES))[first : first + 2])


def _inputs(node: ChakraNode) -> Message:
    try:
        return Message(node.inputs)
    except DamagedMessageError:
        return Message(b"")


_STATED = ("schema", "pid", "time", "start_ts", "finish_ts")


def read_chakra(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Chakra execution trace in `stream`; `file` names it in messages.

    Raises InputError if its nodes are of another schema. Everything less is salvaged and reported.
    """
    progress, rows = ChakraProgress(), _ChakraRows()
    metadata: dict[str, Any] | None = None
    for piece in frames(stream, progress):
        if metadata is None and piece.starts:  # the first message
            start, end = piece.starts.pop(0), piece.ends.pop(0)
            try:
                messages = Message(piece.data, start, end).messages(2)
                metadata = dict(attribute(message) for message in messages)
            except DamagedMessageError:
                metadata = {}
        if piece.starts:
            rows.add(nodes(piece, progress))
        if progress.nodes and progress.other_fields == progress.nodes:
            raise InputError(
                "holds nodes of a schema of Chakra other than 0.0.4",
                where=file,
                fix="convert it again with a present chakra_converter",
            )
    metadata = metadata or {}
    tables = rows.tables()
    findings = [*_findings(progress, rows, file)]
    if tables["et_nodes"].is_empty() and tables["et_communication"].is_empty():
        findings.append(Finding("no-events", "error", "the file holds no nodes", file))
    rank, size = (whole(metadata.get(name)) for name in ("rank", "world_size"))
    sizes = [group["size"] for name, group in rows.groups.items() if name == "0"]
    attributes = {f"et_{name}": str(metadata[name]) for name in _STATED if metadata.get(name) is not None}
    return TraceContent(tables, rank, size or whole(next(iter(sizes), None)), findings, attributes)


def _findings(progress: ChakraProgress, rows: _ChakraRows, file: str) -> Iterator[Finding]:
    """Yield what was lost of a file, and what Chakra does not state: the parts of an all-to-all."""
    if progress.broken_off:
        message = f"reading stopped after {progress.size:,} bytes: {progress.broken_off}"
        yield Finding("file-broken-off", "error", message, file)
    elif progress.rest_bytes:
        message = f"the file ends within a node, after {progress.size:,} bytes"
        yield Finding("file-truncated", "error", message, file)
    if progress.lost:
        message = f"{counted(progress.lost, 'node is', 'nodes are')} unreadable"
        yield Finding("events-lost", "error", message, file, count=progress.lost)
    if count := sum(call["name"] == "all_to_all" for call in rows.calls):
        message = f"Chakra does not state the parts of {counted(count, 'call')} of all_to_all: taken as even"
        touches = ("et_communication",)
        yield Finding("splits-unknown", "warning", message, file, count=count, touches=touches)
