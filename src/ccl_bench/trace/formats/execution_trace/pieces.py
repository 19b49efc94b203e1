"""Cut an Execution Trace into pieces of whole nodes, reading a little at a time.

The file is `{head "nodes": [ node, node, ... ] tail}`. Nodes are cut where one object ends and the next
begins with a key that nodes begin with; the objects inside a node begin otherwise. Inside a JSON string
that sequence cannot occur, because its quotes would be escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.trace.values import next_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

NODE_LIMIT = 64 << 20
"""Bytes without the end of a node after which a file is given up as damaged."""

_LAST_BYTES = 4 << 10
"""Bytes at the end of a buffer in which the last node mostly begins: only without one is more looked at."""

_HEAD_LIMIT = 1 << 20
_TAIL_BYTES = 4 << 10
_FINISHED = b'"finish_ts"'

NODES = re.compile(rb'"nodes"\s*+:\s*+\[')
BOUNDARY = re.compile(
    rb"\}\s*+,\s*+(?=\{\s*+\"(?:(?:id|ctrl_deps|attrs|fw_parent|rf_id)\"\s*+:"
    rb'|name"\s*+:(?:\s*+"(?:[^"\\]|\\.)*+"\s*+,\s*+"(?:id|ctrl_deps|parent|inputs|rf_id)"'
    rb'|[^{}]{0,4096}?"(?:id|rf_id)"\s*+:)))'
)
_ARRAY_END = re.compile(rb"\]")
_ENDS_TRIED = 64
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class Document:
    """What a file holds besides its nodes, and what reading it came to."""

    head: bytes = b""
    """Everything before the nodes."""
    tail: bytes = b""
    """The text after the nodes; empty where the file ends within them."""
    size: int = 0
    """Bytes read, after decompression."""
    found_nodes: bool = False
    """Whether the file has an array of nodes at all."""
    ended: bool = False
    """Whether the array of nodes ends in the file."""
    broken_off: str = ""
    """Why reading stopped before the end of the file, if it did."""


def _skip_head(stream: BinaryIO, document: Document) -> bytes:
    """Read up to the first node, keep what precedes it, and return what follows."""
    buffer = b""
    while len(buffer) < _HEAD_LIMIT and (block := next_block(stream, document, len(buffer))):
        buffer += block
        if match := NODES.search(buffer):
            document.head, document.found_nodes = buffer[: match.start()], True
            return buffer[match.end() :]
    document.head = buffer
    return b""


def _cut(buffer: bytes) -> int:
    """Return the position after the `}` of the last node that is surely whole, or 0."""
    last, size = 0, _LAST_BYTES
    while not last:
        start = max(0, len(buffer) - size)
        for match in BOUNDARY.finditer(buffer, start):
            last = match.start() + 1
        if not start:
            break
        size *= 8
    return last


def _last(buffer: bytes, document: Document) -> bytes:
    """Return the nodes at the end of a file without what follows them.

    The array of nodes ends where what precedes are whole nodes and what follows ends the file; where a
    node is damaged, before the time of the end that torch writes.
    """
    found = [match.start() for match in _ARRAY_END.finditer(buffer, max(0, len(buffer) - _TAIL_BYTES))]
    likely = [end for end in found[-_ENDS_TRIED:][::-1] if _ends_file(buffer[end + 1 :])]
    whole = (end for end in likely if _is_whole(buffer[:end]))
    end = next(whole, next((end for end in likely if _FINISHED in buffer[end:]), None))
    if end is None:
        return buffer
    document.ended, document.tail = True, buffer[end + 1 :]
    return buffer[:end]


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


def pieces(stream: BinaryIO, document: Document) -> Iterator[bytes]:
    """Yield runs of nodes and fill `document`; only the last run may end inside a node."""
    rest = _skip_head(stream, document)
    while document.found_nodes and (block := next_block(stream, document, len(rest))):
        rest += block
        end = _cut(rest)
        if end:
            yield rest[:end]
            rest = rest[end:].lstrip(b" \t\r\n,")
        elif len(rest) > NODE_LIMIT:
            document.broken_off, rest = f"no node ends within {NODE_LIMIT >> 20} MB", b""
    if document.found_nodes:
        yield _last(rest, document)
