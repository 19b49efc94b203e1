"""The messages of Chakra's schema, made from a table of field numbers and types."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ccl_bench.base.errors import CclBenchError

PACKAGE = "ChakraProtoMsg"

VERSION = "0.0.4"
"""Schema version that Chakra's own tools write into the metadata."""

METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7
"""Values of `NodeType` in use."""

NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)

COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
"""Canonical collective → `CollectiveCommType`."""

_KINDS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Kinds of value of an attribute: `<kind>_val` has number 3 + 2i, `<kind>_list` the next."""

_FIRST_VALUE = 3

_MESSAGES = {
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "*AttributeProto")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "*uint64"),
        ("data_deps", 5, "*uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "*AttributeProto"),
    ),
}
"""Message → (field, number, type); `*` marks a repeated field."""


def _library(name: str) -> Any:
    try:
        return import_module(f"google.protobuf.{name}")
    except ImportError as error:
        fix = "pip install 'ccl-bench[chakra]'"
        raise CclBenchError("Chakra files need the package protobuf", fix=fix) from error


@cache
def message(name: str) -> Any:
    """Return the class of a message, such as `Node`."""
    pool = _pool()
    return _library("message_factory").GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    """Return a separate pool with the schema, so that it does not conflict with Chakra's generated one."""
    schema = _library("descriptor_pb2").FileDescriptorProto(
        name="ccl_bench_chakra.proto", package=PACKAGE, syntax="proto3"
    )
    types = schema.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        types.value.add(name=name, number=number)
    for kind in _KINDS:
        _field(schema.message_type.add(name=_list(kind)), "values", 1, f"*{kind}")
    attribute = schema.message_type.add(name="AttributeProto")
    _field(attribute, "name", 1, "string")
    _field(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for place, kind in enumerate(_KINDS):
        number = _FIRST_VALUE + 2 * place
        _field(attribute, f"{kind}_val", number, kind, oneof=True)
        _field(attribute, f"{kind}_list", number + 1, _list(kind), oneof=True)
    for name, fields in _MESSAGES.items():
        message_type = schema.message_type.add(name=name)
        for field in fields:
            _field(message_type, *field)
    pool = _library("descriptor_pool").DescriptorPool()
    pool.Add(schema)
    return pool


def _list(kind: str) -> str:
    return f"{kind.capitalize()}List"


def _field(owner: Any, name: str, number: int, kind: str, *, oneof: bool = False) -> None:
    """Add a field to the descriptor of a message."""
    proto = _library("descriptor_pb2").FieldDescriptorProto
    plain = kind.removeprefix("*")
    field = owner.field.add(name=name, number=number)
    field.label = proto.LABEL_REPEATED if kind.startswith("*") else proto.LABEL_OPTIONAL
    if plain in _KINDS:
        field.type = getattr(proto, f"TYPE_{plain.upper()}")
    else:
        field.type = proto.TYPE_ENUM if plain == "NodeType" else proto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{plain}"
    if oneof:
        field.oneof_index = 0


def attribute(name: str, kind: str, value: object) -> Any:
    """Return an attribute with a value of a kind such as `int64`, or of a list such as `int64_list`."""
    result = message("AttributeProto")(name=name)
    if kind.endswith("_list"):
        getattr(result, kind).values.extend(value)
    else:
        setattr(result, f"{kind}_val", value)
    return result


def framed(content: Any) -> bytes:
    """Return a message with its length before it as a varint, as Chakra's protolib writes it."""
    text: bytes = content.SerializeToString()
    size, length = bytearray(), len(text)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*size, length]) + text
