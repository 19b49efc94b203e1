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

import msgspec

from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.process_groups import OPERATOR, listed_groups
from ccl_bench.trace.protobuf import DamagedMessageError, Message, field_table, read_varint
from ccl_bench.trace.values import FACTORS, matrix_sizes, next_block, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.protobuf import FieldTable

_SEND, _RECEIVE, _COLLECTIVE = 5, 6, 7
_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "barrier"),
)
"""Names of `CollectiveCommType` by number; the block of `REDUCE_SCATTER_BLOCK` is MPI's word."""

_NUMBERS = {
    "forward_parent": "fw_parent",
    "rf_id": "rf_id",
    "sequence_number": "seq_id",
    "scope": "scope",
    "thread": "tid",
    "forward_thread": "fw_tid",
}
"""Column of `et_nodes` → attribute, as Chakra's converter names them."""

_BYTE = "uint8"
"""Element type of a message whose file states none: it is counted in bytes."""

_QUOTED = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_STATED = ("schema", "pid", "time", "start_ts", "finish_ts")


@dataclass(slots=True)
class _Rows:
    """The rows of one file while they are gathered."""

    operators: list[pl.DataFrame] = field(default_factory=list)
    device_work: list[pl.DataFrame] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    products: list[dict[str, object]] = field(default_factory=list)
    groups: dict[str, dict[str, object]] = field(default_factory=dict)

    def add(self, batch: list[Node]) -> None:
        """Take the nodes of one piece."""
        memory.hold_rows("et_nodes", len(batch))
        is_device = [node.attributes.get("is_cpu_op") is False for node in batch]
        for parts, of_device in ((self.operators, False), (self.device_work, True)):
            selection = [
                node for node, on_device in zip(batch, is_device, strict=True) if on_device is of_device
            ]
            parts.append(_operators(selection))
        for node in batch:
            if _SEND <= node.type <= _COLLECTIVE:
                self.calls.append(_call(node))
            if node.name in FACTORS:
                self.products.append(_product(node))
            elif OPERATOR in node.name:
                values = _json(_inputs(node).text(1))
                text = values[0] if isinstance(values, list) and values else None
                self.groups |= {str(group["name"]): group for group in listed_groups(text)}

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return every table; work of a device is no operator, unless the file holds nothing else."""
        for call in self.calls:
            _complete(call, self.groups)
        table = TABLES["et_nodes"].concat(self.operators)
        if table.is_empty():
            table = TABLES["et_nodes"].concat(self.device_work)
        return {
            "et_nodes": table.sort("node", maintain_order=True, nulls_last=True),
            "et_products": _frame("et_products", self.products),
            "et_communication": _frame("et_communication", self.calls).sort("node", nulls_last=True),
            "et_groups": _frame("et_groups", [*self.groups.values()]),
        }


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    table = TABLES[name]
    return table.frame({key: [row.get(key) for row in rows] for key in table.columns})


def _operators(batch: list[Node]) -> pl.DataFrame:
    numbers = {
        column: [whole(node.attributes.get(name)) for node in batch] for column, name in _NUMBERS.items()
    }
    return TABLES["et_nodes"].frame(
        {
            "node": [_number(node.id) for node in batch],
            "name": [node.name for node in batch],
            "parent": [_number(node.caller) for node in batch],
            **numbers,
        }
    )


def _number(value: int | None) -> int | None:
    """Return the number of a node; those that do not fit a column are none."""
    return None if value is None else whole(value if value >= 0 else None)


def _call(node: Node) -> dict[str, Any]:
    """Return one send, receive or collective; work of a device counts where it was launched."""
    attributes = node.attributes
    is_launched = attributes.get("is_cpu_op") is False and node.caller is not None
    row: dict[str, Any] = {
        "node": _number(node.caller if is_launched else node.id),
        "name": _collective(node),
    }
    size = whole(attributes.get("comm_size"))
    side = "out" if node.type == _RECEIVE else "in"
    if size is not None and size > 0:
        dtype = attributes.get("dtype")
        width = _width(dtype)
        is_known = width is not None and size % width == 0
        row |= {
            f"{side}_bytes": size,
            f"{side}_elements": round(size / width) if is_known and width else size,
            "dtype": dtype if is_known else _BYTE,
        }
    group = attributes.get("pg_name")
    row |= {
        "group_name": None if group in (None, "") else str(group),
        "rf_id": whole(attributes.get("rf_id")),
    }
    row |= {"group_size": whole(attributes.get("pg_size"))}
    if node.type != _COLLECTIVE:
        row["peer"] = whole(attributes.get("comm_src" if node.type == _RECEIVE else "comm_dst"))
    return row


def _collective(node: Node) -> str:
    if node.type != _COLLECTIVE:
        return "send" if node.type == _SEND else "recv"
    kind = whole(node.attributes.get("comm_type"))
    return _COLLECTIVES[kind] if kind is not None and 0 <= kind < len(_COLLECTIVES) else node.name


def _width(dtype: object) -> float | None:
    try:
        return width_bytes(dtype) if isinstance(dtype, str) else None
    except NotMeasurable:
        return None


def _complete(call: dict[str, Any], groups: dict[str, dict[str, Any]]) -> None:
    """Add the description and size of a call's group, and to a message the place of the other rank."""
    peer, group = call.pop("peer", None), groups.get(str(call["group_name"]), {})
    call["group_description"] = group.get("description")
    if call["group_size"] is None:
        call["group_size"] = group.get("size")
    ranks = group.get("ranks")
    if peer is not None:
        call["rank_argument"] = ranks.index(peer) if ranks and peer in ranks else peer


def _product(node: Node) -> dict[str, object]:
    """Return one product of matrices; sizes are absent where the shapes do not fit."""
    inputs, first = _inputs(node), FACTORS[node.name]
    shapes = _json(inputs.text(SHAPES))
    types = [
        single_quoted or double_quoted for single_quoted, double_quoted in _QUOTED.findall(inputs.text(TYPES))
    ]
    match = _TENSOR.fullmatch(types[first]) if len(types) > first else None
    row = {"node": _number(node.id), "name": node.name, "dtype": match[1] if match else None}
    return row | matrix_sizes(shapes[first : first + 2] if isinstance(shapes, list) else [])


def _inputs(node: Node) -> Message:
    try:
        return Message(node.inputs)
    except DamagedMessageError:
        return Message(b"")


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def read_chakra(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Chakra execution trace in `stream`; `file` names it in messages.

    Raises InputError if its nodes are of another schema. Everything less is salvaged and reported.
    """
    reading, rows = Reading(), _Rows()
    metadata: dict[str, Any] | None = None
    for piece in frames(stream, reading):
        if metadata is None and piece.starts:
            metadata = _metadata(piece)
        if piece.starts:
            rows.add(nodes(piece, reading))
        if reading.nodes and reading.other_fields == reading.nodes:
            raise InputError(
                "holds nodes of a schema of Chakra other than 0.0.4",
                where=file,
                fix="convert it again with a present chakra_converter",
            )
    metadata = metadata or {}
    tables = rows.tables()
    findings = [*_damage(reading, file), *_unstated(rows.calls, file)]
    if tables["et_nodes"].is_empty() and tables["et_communication"].is_empty():
        findings.append(Finding("no-events", "error", "the file holds no nodes", file))
    rank, size = (whole(metadata.get(name)) for name in ("rank", "world_size"))
    sizes = [group["size"] for name, group in rows.groups.items() if name == "0"]
    attributes = {f"et_{name}": str(metadata[name]) for name in _STATED if metadata.get(name) is not None}
    return TraceContent(tables, rank, size or whole(next(iter(sizes), None)), findings, attributes)


def _metadata(piece: Frames) -> dict[str, Any]:
    """Take the metadata, the first message, from the others, and return its attributes."""
    start, end = piece.starts.pop(0), piece.ends.pop(0)
    try:
        return dict(attribute(message) for message in Message(piece.data, start, end).messages(2))
    except DamagedMessageError:
        return {}


def _unstated(calls: list[dict[str, Any]], file: str) -> Iterator[Finding]:
    """Report the data that Chakra does not state: the parts of an all-to-all."""
    if count := sum(call["name"] == "all_to_all" for call in calls):
        message = f"Chakra does not state the parts of {counted(count, 'call')} of all_to_all: taken as even"
        touches = ("et_communication",)
        yield Finding("splits-unknown", "warning", message, file, count=count, touches=touches)


def _damage(reading: Reading, file: str) -> Iterator[Finding]:
    if reading.broken_off:
        message = f"reading stopped after {reading.size:,} bytes: {reading.broken_off}"
        yield Finding("file-broken-off", "error", message, file)
    elif reading.rest_bytes:
        message = f"the file ends within a node, after {reading.size:,} bytes"
        yield Finding("file-truncated", "error", message, file)
    if reading.lost:
        message = f"{counted(reading.lost, 'node is', 'nodes are')} unreadable"
        yield Finding("events-lost", "error", message, file, count=reading.lost)


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
    """The outcome of reading a file."""

    size: int = 0
    broken_off: str = ""
    rest_bytes: int = 0
    """Bytes at the end that are no whole message."""
    lost: int = 0
    """Messages that could not be read."""
    other_fields: int = 0
    """Nodes with fields that the schema does not have."""
    nodes: int = 0


class Node(NamedTuple):
    """One node, with the fields that the reader uses."""

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
    buffer = b""
    while block := next_block(stream, reading, len(buffer)):
        piece = Frames(buffer + block)
        place = _cut(piece, reading)
        yield piece
        buffer = piece.data[place:]
        if reading.broken_off:
            break
    reading.rest_bytes = len(buffer)


def _cut(piece: Frames, reading: Reading) -> int:
    """Find the whole messages in the bytes, and return the start of the rest."""
    place, stop = 0, len(piece.data)
    while place < stop:
        try:
            size, start = read_varint(piece.data, place, stop)
        except DamagedMessageError:
            break
        if size > LONGEST:
            reading.broken_off = "a message of impossible length"
            break
        if start + size > stop:
            break
        piece.starts.append(start)
        piece.ends.append(start + size)
        place = start + size
    return place


def nodes(piece: Frames, reading: Reading) -> list[Node]:
    """Return the nodes in some bytes; those that cannot be read are counted."""
    try:
        table = field_table(piece.data, piece.starts, piece.ends)
        attributes = _attributes(piece.data, table)
    except DamagedMessageError:
        return [node for at in range(len(piece.starts)) for node in _read_single(piece, at, reading)]
    count = len(piece.starts)
    reading.nodes += count
    reading.other_fields += len({*table.message[(table.number > LAST) | (table.number < 1)].tolist()})
    names, inputs = (_texts(piece.data, table.of(number)) for number in (NAME, INPUTS))
    callers = _callers(piece.data, table.of(CONTROL))
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


def _read_single(piece: Frames, at: int, reading: Reading) -> list[Node]:
    """Return one node, none if it cannot be read."""
    single = Frames(piece.data, piece.starts[at : at + 1], piece.ends[at : at + 1])
    try:
        _attributes(piece.data, field_table(single.data, single.starts, single.ends))
    except DamagedMessageError:
        reading.lost += 1
        return []
    return nodes(single, reading)


def _texts(data: bytes, table: FieldTable) -> dict[int, bytes]:
    rows = zip(table.message.tolist(), table.value.tolist(), table.end.tolist(), strict=True)
    return {message: data[start:end] for message, start, end in rows if end}


def _callers(data: bytes, table: FieldTable) -> dict[int, int]:
    """Return the first of the numbers of each message, packed or not."""
    callers: dict[int, int] = {}
    for message, value, end in zip(
        table.message.tolist(), table.value.tolist(), table.end.tolist(), strict=True
    ):
        if not end:
            callers.setdefault(message, value)
        elif value < end:
            callers.setdefault(message, read_varint(data, value, end)[0])
    return callers


def _attributes(data: bytes, table: FieldTable) -> dict[int, dict[str, Any]]:
    """Return the named values of each message that has some."""
    attribute_fields = table.of(ATTRIBUTES)
    inner = field_table(data, attribute_fields.value, attribute_fields.end)
    values: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    columns = (inner.message, inner.number, inner.value, inner.end)
    for message, number, value, end in zip(*(column.tolist() for column in columns), strict=True):
        values[message].append((number, value, end))
    attributes: dict[int, dict[str, Any]] = defaultdict(dict)
    for place, owner in enumerate(attribute_fields.message.tolist()):
        name, value = _name_and_value(data, values[place])
        attributes[owner][name] = value
    return attributes


def attribute(message: Message) -> tuple[str, Any]:
    """Return name and value of an attribute in a message of its own; None for a list of values."""
    numbers = [number for number in range(_FIRST_VALUE, _FIRST_VALUE + 30) if number in message]
    fields = [(number, part.value, part.end) for number in numbers for part in message.each(number)]
    return message.text(NAME_OF_ATTRIBUTE), _name_and_value(message.data, fields)[1]


NAME_OF_ATTRIBUTE = 1


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
