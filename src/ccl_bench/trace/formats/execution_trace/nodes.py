"""Nodes of Execution Traces: their form in every schema, and reading them also from unusual and damaged text.

Plain schemas (1.0.0, 1.0.1) keep everything beside `name`; the `-chakra` ones keep operands under `inputs`
and `outputs`, the parent as `ctrl_deps` and the rest in `attrs`. Source: PyTorch's
execution_trace_observer.cpp, which escapes neither names nor types.
"""

from __future__ import annotations

import contextlib
import functools
import re
from operator import attrgetter, or_
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct, defstruct, field

from ccl_bench.base.text import json_decoder
from ccl_bench.trace.json_array import BETWEEN, ArrayForm, array_end, array_pieces, repaired_piece
from ccl_bench.trace.values import UNREADABLE, json_value, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import BinaryIO

    from ccl_bench.trace.json_array import Document

_NOTHING = Raw(b"[]")


class RawOperands(Struct, gc=False):
    """Inputs or outputs of a node as JSON."""

    values: Raw = _NOTHING
    shapes: Raw = _NOTHING
    types: Raw = _NOTHING


class _Operator(Struct, gc=False):
    """The name of a node and its operands."""

    name: str = ""
    op_schema: str | None = None
    inputs: Raw = _NOTHING
    input_shapes: Raw = _NOTHING
    input_types: Raw = _NOTHING
    outputs: Raw = _NOTHING
    output_shapes: Raw = _NOTHING
    output_types: Raw = _NOTHING


COUNTED = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
"""Numbers of a node, in the order in which the `-chakra` schemas write them first of all attributes."""
_UNREAD = ("kernel_backend", "kernel_file", "tensor_range")
_READ = (
    *("op_schema", "collective_name", "dtype", "in_msg_nelems", "out_msg_nelems", "in_split_size"),
    *("out_split_size", "pg_size", "pg_name", "pg_desc", "global_rank_start", "global_rank_stride"),
    "is_asynchronized_op",
)
_KNOWN = {*COUNTED, *_UNREAD, *_READ}


def _attribute_kinds(names: Iterable[str], values: list[tuple[str, Any]]) -> list[type[Struct]]:
    """Return a type for each name that an attribute may have: what has a type is decoded without a text."""
    return [defstruct(name, values, tag_field="name", tag=name, gc=False) for name in names]


_NUMBER_KINDS = _attribute_kinds(COUNTED, [("value", int | None)])
_OTHER_KINDS = [*_attribute_kinds(_UNREAD, []), *_attribute_kinds(_READ, [("value", Raw)])]
_AnyKind = functools.reduce(or_, [*_NUMBER_KINDS, *_OTHER_KINDS])


class Node(_Operator, gc=False):
    """One element of `nodes`, in any schema."""

    id: int | None = None
    parent: int | None = None
    ctrl_deps: int | None = None
    rf_id: int | None = None
    fw_parent: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    tid: int | None = None
    fw_tid: int | None = None
    attrs: list[_AnyKind] = field(default_factory=list)  # type: ignore[valid-type]

    def attribute(self, name: str) -> Any:
        """Return an entry of `attrs`, or None."""
        match = next((entry for entry in self.attrs if type(entry).__name__ == name), None)
        value = getattr(match, "value", None)
        return json_value(value) if isinstance(value, Raw) else value

    def number(self, name: str) -> int | None:
        """Return a number of the node, whichever way its schema keeps it."""
        return whole(self.attribute(name) if self.attrs else getattr(self, name))

    def read(self) -> RawOperands:
        """Return the inputs."""
        return _operands(self.inputs, self.input_shapes, self.input_types)

    def written(self) -> RawOperands:
        """Return the outputs."""
        return _operands(self.outputs, self.output_shapes, self.output_types)


_OPERANDS = json_decoder(RawOperands)


def _operands(values: Raw, shapes: Raw, types: Raw) -> RawOperands:
    if not bytes(values).startswith(b"{"):
        return RawOperands(values, shapes, types)
    try:
        return _OPERANDS.decode(values)
    except UNREADABLE:
        return RawOperands()


def numbers_of(nodes: Sequence[Node]) -> dict[str, list[int | None]]:
    """Return the numbers of nodes by name."""
    attributes = [node.attrs for node in nodes]
    if not any(attributes):
        return {name: [*map(attrgetter(name), nodes)] for name in COUNTED}
    numbers: dict[str, list[int | None]] = {}
    for place, (name, kind) in enumerate(zip(COUNTED, _NUMBER_KINDS, strict=True)):
        with contextlib.suppress(IndexError):
            column = [of_node[place] for of_node in attributes]
            if {*map(type, column)} == {kind}:  # at one place in every node, as nearly always
                numbers[name] = [*map(attrgetter("value"), column)]
        if name not in numbers:
            numbers[name] = [node.number(name) for node in nodes]
    return numbers


_Number = int | float | str | bool | None
"""What may stand where a number belongs."""


class _LooseAttribute(Struct, gc=False):
    name: str = ""
    value: Raw = _NOTHING


class _LooseNode(_Operator, gc=False):
    """A node with anything in place of numbers, and any attributes."""

    id: _Number = None
    parent: _Number = None
    ctrl_deps: _Number = None
    rf_id: _Number = None
    fw_parent: _Number = None
    seq_id: _Number = None
    scope: _Number = None
    tid: _Number = None
    fw_tid: _Number = None
    attrs: list[_LooseAttribute] = field(default_factory=list)


_NODES = json_decoder(list[Node])
_LOOSE_NODES = json_decoder(list[_LooseNode])


def decoded(text: bytes) -> list[Node] | None:
    """Return the nodes in a text; None if it is damaged, or one of them is unusual."""
    try:
        return _NODES.decode(b"[" + text.strip(BETWEEN) + b"]")
    except UNREADABLE:
        return None


def _readable(text: bytes) -> bytes | None:
    """Return nodes with whole numbers and known attributes alone, as `Node` has them; None if damaged."""
    if decoded(text) is not None:
        return text
    try:
        nodes = _LOOSE_NODES.decode(b"[" + text.strip(BETWEEN) + b"]")
    except UNREADABLE:
        return None
    for node in nodes:
        node.parent = whole(node.parent if node.ctrl_deps is None else node.ctrl_deps)
        node.ctrl_deps = None
        for name in ("id", *COUNTED):
            setattr(node, name, whole(getattr(node, name)))
        node.attrs = [attribute for attribute in node.attrs if attribute.name in _KNOWN]
        for attribute in node.attrs:
            if attribute.name in COUNTED:
                attribute.value = Raw(msgspec.json.encode(whole(json_value(attribute.value))))
    usual = msgspec.json.encode(nodes)[1:-1]
    return usual if decoded(usual) is not None else None


BOUNDARY = re.compile(
    rb"\}\s*+,\s*+(?=\{\s*+\"(?:(?:id|ctrl_deps|attrs|fw_parent|rf_id)\"\s*+:"
    rb'|name"\s*+:(?:\s*+"(?:[^"\\]|\\.)*+"\s*+,\s*+"(?:id|ctrl_deps|parent|inputs|rf_id)"'
    rb'|[^{}]{0,4096}?"(?:id|rf_id)"\s*+:)))'
)
"""Between two nodes: the next begins with a key that nodes begin with, and objects inside of one do not."""
NODES = ArrayForm(
    start=re.compile(rb'"nodes"\s*+:\s*+\['),
    boundary=BOUNDARY,
    item="node",
    name=re.compile(
        rb'("name"\s*+:\s*+")(.{0,4096}?)("\s*+,\s*+"(?:id|ctrl_deps|parent|rf_id|inputs)"\s*+:)', re.DOTALL
    ),
    head_limit=1 << 20,
)

_TAIL_BYTES = 4 << 10
"""Bytes at the end of a file in which the array ends: few writers add more than a time."""
_FINISH = re.compile(rb'\]\s*+,\s*+"finish_ts"\s*+:\s*+\d++\s*+\}\s*+\Z')
"""What torch writes behind the nodes; the last of them may be damaged."""


def read_nodes(stream: BinaryIO, document: Document, take: Callable[[bytes], bool]) -> None:
    """Give the text of the nodes of a file to `take`, piece by piece, and fill `document`.

    `take` returns whether it could read the text with `decoded`; if not, it is given it anew, repaired.
    """
    for piece in array_pieces(stream, document, NODES):
        text = piece.text
        if piece.is_last:
            start = max(0, len(text) - _TAIL_BYTES)
            finish = _FINISH.search(text, start)
            end = finish.start() if finish else array_end(text, start)
            if not finish and end is not None and _readable(text[:end]) is None:
                end = None  # the file is cut, and a list in a node ends like the array
            document.tail = b"" if end is None else text[end + 1 :]
            document.is_truncated = not document.tail
            text = text[: text.rfind(b"}") + 1 if end is None else end]
        if not take(text):
            readable = _readable(text)
            if readable is None:
                damaged, is_cut = piece._replace(text=text), document.is_truncated
                readable, _ = repaired_piece(damaged, document, NODES, _readable, is_cut=is_cut)
            take(readable)
