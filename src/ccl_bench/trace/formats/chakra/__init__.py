"""Chakra execution traces, `<name>.<rank>.et`: metadata and nodes in protobuf, of schema 0.0.4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, all_of, begins, none_of, register

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

NAME = "chakra"

_VERSION, _ATTRIBUTES = 1, 2
"""Fields of the metadata."""


def identity(head: bytes) -> Identity:
    """Return the rank and the number of ranks, which only some writers state."""
    attributes = _metadata(head) or {}
    numbers = (attributes.get(name) for name in ("rank", "world_size"))
    rank, world_size = (number if isinstance(number, int) and number >= 0 else None for number in numbers)
    return Identity(rank=rank, world_size=world_size)


def _metadata(head: bytes) -> Mapping[str, object] | None:
    """Return the attributes of the metadata; None if the bytes are not of a Chakra execution trace.

    Behind the metadata begins a node with a number, a name or a type, which may be longer than the head.
    """
    from ccl_bench.trace.formats.chakra.reader import LONGEST, attribute
    from ccl_bench.trace.protobuf import BYTES, VARINT, DamagedMessageError, Message, read_varint

    try:
        size, start = read_varint(head, 0, len(head))
        if size > len(head) - start:
            return None
        metadata = Message(head, start, start + size)
        if metadata.holds_others(_VERSION, _ATTRIBUTES):
            return None
        attributes = dict(attribute(message) for message in metadata.messages(_ATTRIBUTES))
        size, start = read_varint(head, start + size, len(head))
        tag, at = read_varint(head, start, len(head))
        value, at = read_varint(head, at, len(head))
    except DamagedMessageError:
        return None
    if tag == 2 << 3 | BYTES:
        is_field = value < size and head[at : at + value].isascii()
    else:
        is_field = tag in (1 << 3 | VARINT, 3 << 3 | VARINT) and at <= start + size
    texts = [metadata.text(_VERSION), *attributes]
    is_named = all(attributes) and all(map(str.isprintable, texts))
    return attributes if is_named and is_field and 0 < size < LONGEST else None


def _holds_metadata(head: bytes) -> bool:
    return _metadata(head) is not None


recognises = all_of(
    none_of(begins(rb'[\[{]\n[ "]')),  # indented JSON
    begins(rb"[\x80-\xff]{0,9}(?:\x00|[\x01-\x7f][\x0a\x12])"),
    _holds_metadata,
)
"""The length of the metadata, the metadata, which has two fields, and nodes."""


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.chakra.reader import read_chakra

    return read_chakra(stream, file)


CHAKRA = register(
    Format(
        name=NAME,
        profile="torch",
        revision=2,
        tables=frozenset({"et_nodes", "et_products", "et_communication", "et_groups"}),
        recognises=recognises,
        identity=identity,
        read=_read,
        suffixes=(".et", ".et.gz"),
        recorder="Chakra",
        may_be_alike=True,
    )
)
