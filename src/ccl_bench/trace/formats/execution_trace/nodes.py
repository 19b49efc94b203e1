"""Nodes of Execution Traces: their form in every schema, and reading them from damaged text.

Plain schemas (1.0.0, 1.0.1) keep everything beside `name`; the `-chakra` ones keep operands under `inputs`
and `outputs`, the parent as `ctrl_deps` and the rest in `attrs`. Source: PyTorch's
execution_trace_observer.cpp, which escapes neither names nor types.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from operator import attrgetter, or_
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct, defstruct, field

from ccl_bench.trace.values import ArrayForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.trace.values import Document

Number = int | float | str | bool | None
"""What real files hold where a number belongs."""

LARGEST = 2**63

_NOTHING = Raw(b"[]")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Attribute(Struct, gc=False):
    """One entry of `attrs`."""

    name: str = ""
    value: Raw = _NOTHING


class Operands(Struct, gc=False):
    """Inputs or outputs in the `-chakra` schemas."""

    values: Raw = _NOTHING
    shapes: Raw = _NOTHING
    types: Raw = _NOTHING


class _Operator(Struct, gc=False):
    """Fields of a node that all schemas share: its name and its operands."""

    name: str = ""
    op_schema: str | None = None
    inputs: Raw = _NOTHING
    input_shapes: Raw = _NOTHING
    input_types: Raw = _NOTHING
    outputs: Raw = _NOTHING
    output_shapes: Raw = _NOTHING
    output_types: Raw = _NOTHING

    def read(self) -> Operands:
        """Return the inputs."""
        return _operands(self.inputs, self.input_shapes, self.input_types)

    def written(self) -> Operands:
        """Return the outputs."""
        return _operands(self.outputs, self.output_shapes, self.output_types)


class Node(_Operator, gc=False):
    """One element of `nodes`, in any schema."""

    id: Number = None
    parent: Number = None
    ctrl_deps: Number = None
    rf_id: Number = None
    fw_parent: Number = None
    seq_id: Number = None
    scope: Number = None
    tid: Number = None
    fw_tid: Number = None
    attributes: list[Attribute] = field(name="attrs", default_factory=list)

    def attribute(self, name: str) -> Any:
        """Return an entry of `attrs`, or None."""
        return next((decoded(entry.value) for entry in self.attributes if entry.name == name), None)

    def number(self, name: str) -> int | None:
        """Return a number of the node, whichever way its schema keeps it."""
        return whole(self.attribute(name) if self.attributes else getattr(self, name))


_COUNTED = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
"""Numbers of a node, in the order in which the `-chakra` schemas write them first of all attributes."""
_UNREAD = ("op_schema", "kernel_backend", "kernel_file", "tensor_range")
_OF_CALLS = (
    *(
        "collective_name",
        "dtype",
        "in_msg_nelems",
        "out_msg_nelems",
        "in_split_size",
        "out_split_size",
        "pg_size",
    ),
    *("pg_name", "pg_desc", "global_rank_start", "global_rank_stride", "is_asynchronized_op"),
)


def _attribute_kinds(names: Iterable[str], values: list[tuple[str, type]]) -> list[type[Struct]]:
    """Return a type for each name that an attribute may have."""
    return [defstruct(name, values, tag_field="name", tag=name, gc=False) for name in names]


_NUMBER_KINDS = _attribute_kinds(_COUNTED, [("value", int)])
_KINDS = [
    *_NUMBER_KINDS,
    *_attribute_kinds(_UNREAD, []),
    *_attribute_kinds(_OF_CALLS, [("value", Raw)]),
]


_ANY_KIND = functools.reduce(or_, _KINDS)


class UsualNode(_Operator, gc=False):
    """A node whose numbers are whole and whose attributes are known, as of nearly every node."""

    id: int | None = None
    parent: int | None = None
    ctrl_deps: int | None = None
    rf_id: int | None = None
    fw_parent: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    tid: int | None = None
    fw_tid: int | None = None
    attrs: list[_ANY_KIND] = field(default_factory=list)  # type: ignore[valid-type]

    def attribute(self, name: str) -> Any:
        """Return an entry of `attrs`, or None."""
        match = next((entry for entry in self.attrs if type(entry).__name__ == name), None)
        value = getattr(match, "value", None)
        return decoded(value) if isinstance(value, Raw) else value

    def number(self, name: str) -> int | None:
        """Return a number of the node, whichever way its schema keeps it."""
        return whole(self.attribute(name) if self.attrs else getattr(self, name))


@dataclass(slots=True)
class Losses:
    """Nodes that were repaired or lost, over one file."""

    repaired: int = 0
    lost: int = 0


_DECODER = msgspec.json.Decoder(list[Node])
_USUAL = msgspec.json.Decoder(list[UsualNode])
_OPERANDS = msgspec.json.Decoder(Operands)


def whole(value: object) -> int | None:
    """Return `value` as a whole number that fits a column, or None if it is not one."""
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -LARGEST <= value < LARGEST else None  # type: ignore[operator,return-value]


def decoded(raw: Raw) -> Any:
    """Return the value behind raw JSON, None if it cannot be read."""
    try:
        return msgspec.json.decode(raw)
    except _UNREADABLE:
        return None


def listed(raw: Raw) -> list[Any]:
    """Return the list behind raw JSON, empty if it is none."""
    value = decoded(raw)
    return value if isinstance(value, list) else []


def _operands(values: Raw, shapes: Raw, types: Raw) -> Operands:
    if not bytes(values).startswith(b"{"):
        return Operands(values, shapes, types)
    try:
        return _OPERANDS.decode(values)
    except _UNREADABLE:
        return Operands()


_CONTROL = re.compile(rb"[\x00-\x1f]")
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SURROGATES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_NAME = re.compile(
    rb'("name"\s*+:\s*+")(.{0,4096}?)("\s*+,\s*+"(?:id|ctrl_deps|parent|rf_id|inputs)"\s*+:)', re.DOTALL
)
_STRAY_QUOTE = re.compile(rb'(?<!\\)"')


def _repaired(text: bytes) -> bytes:
    """Return the text of a node with unambiguous damage repaired."""
    text = _CONTROL.sub(b" ", text.decode("utf-8", "replace").encode())
    text = _STRAY_BACKSLASH.sub(rb"\\\\", text)
    text = _SURROGATES.sub(lambda m: m[1] or rb"\ufffd", text)
    return _NAME.sub(lambda m: m[1] + _STRAY_QUOTE.sub(rb'\\"', m[2]) + m[3], text, count=1)


def _nodes(text: bytes) -> list[Node] | None:
    try:
        return _DECODER.decode(b"[" + text.strip(b" \t\r\n,") + b"]")
    except _UNREADABLE:
        return None


def usual_nodes(piece: bytes) -> list[UsualNode] | None:
    """Return the nodes of a piece; None if one of them is not as usual: `nodes_in` reads them then."""
    try:
        return _USUAL.decode(b"[" + piece.strip(b" \t\r\n,") + b"]")
    except _UNREADABLE:
        return None


def usual_numbers(nodes: Sequence[UsualNode]) -> dict[str, list[int | None]] | None:
    """Return the numbers of nodes by name; None if they are not all kept in the one or the other way."""
    attributes = [node.attrs for node in nodes]
    if not any(attributes):
        return {name: [*map(attrgetter(name), nodes)] for name in _COUNTED}
    numbers: dict[str, list[int | None]] = {}
    for place, (name, kind) in enumerate(zip(_COUNTED, _NUMBER_KINDS, strict=True)):
        try:
            column = [of_node[place] for of_node in attributes]
        except IndexError:
            return None
        if {*map(type, column)} != {kind}:
            return None
        numbers[name] = [*map(attrgetter("value"), column)]
    return numbers


BOUNDARY = re.compile(
    rb"\}\s*+,\s*+(?=\{\s*+\"(?:(?:id|ctrl_deps|attrs|fw_parent|rf_id)\"\s*+:"
    rb'|name"\s*+:(?:\s*+"(?:[^"\\]|\\.)*+"\s*+,\s*+"(?:id|ctrl_deps|parent|inputs|rf_id)"'
    rb'|[^{}]{0,4096}?"(?:id|rf_id)"\s*+:)))'
)
"""Between two nodes: the next begins with a key that nodes begin with, and objects inside of one do not."""
NODES = ArrayForm(re.compile(rb'"nodes"\s*+:\s*+\['), BOUNDARY, "node", head_limit=1 << 20)

_TAIL_BYTES = 4 << 10
_FINISHED = b'"finish_ts"'
_ARRAY_END = re.compile(rb"\]")
_ENDS_TRIED = 64
_LIST = msgspec.json.Decoder(list[Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Raw])


def last_nodes(piece: bytes, document: Document) -> bytes:
    """Return the nodes at the end of a file without the text behind them, which becomes the document's tail.

    The array of nodes ends where what precedes are whole nodes and what follows ends the file; where a
    node is damaged, before the time of the end that torch writes.
    """
    ends = [match.start() for match in _ARRAY_END.finditer(piece, max(0, len(piece) - _TAIL_BYTES))]
    likely = [end for end in ends[-_ENDS_TRIED:][::-1] if _ends_file(piece[end + 1 :])]
    closing = (end for end in likely if _is_whole(piece[:end]))
    end = next(closing, next((end for end in likely if _FINISHED in piece[end:]), None))
    if end is None:
        return piece
    document.tail = piece[end + 1 :]
    return piece[:end]


def _ends_file(tail: bytes) -> bool:
    try:
        return bool(_OBJECT.decode(b'{"nodes":[]' + tail))
    except _UNREADABLE:
        return False


def _is_whole(nodes: bytes) -> bool:
    try:
        _LIST.decode(b"[" + nodes + b"]")
    except _UNREADABLE:
        return False
    return True


def nodes_in(piece: bytes, losses: Losses, *, may_be_cut: bool) -> Iterator[Node]:
    """Yield the nodes of a piece, one by one where it is damaged; the last may have been cut."""
    nodes = _nodes(piece)
    if nodes is not None:
        yield from nodes
        return
    cuts = [0, *(match.start() + 1 for match in BOUNDARY.finditer(piece)), len(piece)]
    for position, start in enumerate(cuts[:-1]):
        part = piece[start : cuts[position + 1]]
        is_cut = may_be_cut and position == len(cuts) - 2
        nodes = _nodes(part[: part.rfind(b"}") + 1] if is_cut else part)
        if nodes is None and (nodes := _nodes(_repaired(part))) is not None:
            losses.repaired += len(nodes)
        losses.lost += nodes is None and not is_cut
        yield from nodes or []
