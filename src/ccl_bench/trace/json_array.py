"""Cut the array of objects in a JSON file into pieces of whole objects, reading a little at a time.

The file is `{head "key": [ object, object, ... ] tail}`, of which formats say how the array begins and where
one of its objects ends: the text between two of them cannot occur in a JSON string, because its quotes
would be escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.trace.values import next_block

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator
    from typing import BinaryIO

OBJECT_LIMIT = 64 << 20
"""Bytes without the end of an object after which a file is given up as damaged."""

_CUTS_TRIED = 2
"""Separators looked at from the end of a buffer, which may lie just behind the last of them."""

_LAST_BYTES = 8 << 10
"""Bytes at the end of a buffer in which the last object mostly begins: only without one is more looked at."""

_BETWEEN = b" \t\r\n,"


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """How the files of a format hold their array."""

    start: re.Pattern[bytes]
    """Its key and its opening bracket."""
    boundary: re.Pattern[bytes]
    """From the `}` of one of its objects up to the next one."""
    item: str
    """What messages call an object, such as `event`."""
    head_limit: int = OBJECT_LIMIT
    """Bytes after which a file without the key has no array."""
    separators: tuple[bytes, ...] = ()
    """Where objects usually end, looked for first; `boundary` has the last word."""
    may_be_bare: bool = False
    """Whether the file may be the array alone."""


@dataclass(slots=True)
class Document:
    """What a file holds besides its array, and what reading it came to."""

    head: bytes = b""
    """Everything before the array."""
    tail: bytes = b""
    """Everything after the array; empty where the file ends inside it."""
    size: int = 0
    """Bytes read, after decompression."""
    found_array: bool = False
    """Whether the file has the array at all."""
    broken_off: str = ""
    """Why reading stopped before the end of the file, if it did."""


def array_pieces(stream: BinaryIO, document: Document, form: ArrayForm) -> Iterator[tuple[int, bytes]]:
    """Yield runs of whole objects with their offset in the file; the last one holds the tail.

    Fills `document` while it goes. Only one piece is in memory at a time, unless a single
    object is larger than that.
    """
    rest = _skip_head(stream, document, form)
    while document.found_array and (block := next_block(stream, document, len(rest))):
        buffer = rest + block if rest else block
        end = _cut(buffer, form)
        if end:
            yield document.size - len(buffer), buffer[:end]
            rest = buffer[end:].lstrip(_BETWEEN)
        elif len(buffer) > OBJECT_LIMIT:
            document.broken_off = f"no {form.item} ends within {OBJECT_LIMIT >> 20} MB"
            rest = b""
        else:
            rest = buffer
    if document.found_array:
        yield document.size - len(rest), rest


def _skip_head(stream: BinaryIO, document: Document, form: ArrayForm) -> bytes:
    """Read up to the first object, keep what precedes it, and return what follows."""
    buffer = b""
    while len(buffer) < form.head_limit and (block := next_block(stream, document, len(buffer))):
        buffer += block
        if match := form.start.search(buffer):
            document.head, document.found_array = buffer[: match.start()], True
            return buffer[match.end() :]
        if form.may_be_bare and (stripped := buffer.lstrip()).startswith(b"["):
            document.found_array = True
            return stripped[1:]
    document.head = buffer
    return b""


def _cut(buffer: bytes, form: ArrayForm) -> int:
    """Return the position after the `}` of the last object that is surely whole, or 0.

    A writer that uses none of the usual separators must not make every search one of the whole buffer.
    """
    size = _LAST_BYTES
    while not (end := _cut_behind(buffer, max(0, len(buffer) - size), form)) and size < len(buffer):
        size *= 8
    return end


def _cut_behind(buffer: bytes, start: int, form: ArrayForm) -> int:
    """Return what `_cut` does of what begins at `start`, or 0."""
    for separator in form.separators:
        at = len(buffer)
        for _ in range(_CUTS_TRIED):
            if (at := buffer.rfind(separator, start, at)) < 0:
                break
            if form.boundary.match(buffer, end := at + separator.index(b"}")):
                return end + 1
    last = 0
    for match in form.boundary.finditer(buffer, start):
        last = match.start() + 1
    return last
