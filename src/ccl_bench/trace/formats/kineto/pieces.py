"""Cut a trace file into pieces that hold whole events, reading a little at a time.

A trace is `{head "traceEvents": [ event, event, ... ] tail}` or, as other writers have it, a bare
`[ event, event, ...`. The events are cut where one object ends and the next begins with
a key that events begin with; inside a JSON string that sequence cannot stand, since its quotes
would be escaped. It can stand among objects inside an event or after the events, which shows
when such a piece does not decode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.trace.json_pieces import next_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

EVENT_LIMIT = 64 << 20
"""Bytes without an event boundary after which a file is given up as damaged."""

BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|tid|ts|args|bp)\"\s*:)")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATORS = (b"\n  },\n  {", b'},{"', b"},\n{", b"}, {", b"},\n")

_CUTS_TRIED = 2
"""Separators looked at from the end of a buffer, which may lie just behind the last of them."""


@dataclass(slots=True)
class Document:
    """What a file holds besides its events, and what reading it came to."""

    head: bytes = b""
    """Everything before the events."""
    tail: bytes = b""
    """Everything after the events; empty where the file ends among them."""
    size: int = 0
    """Bytes read, after decompression."""
    found_events: bool = False
    """Whether the file has an array of events at all."""
    broken_off: str = ""
    """Why reading stopped before the end of the file, if it did."""


def _skip_head(stream: BinaryIO, document: Document) -> bytes:
    """Read up to the first event, keep what precedes it, and return what follows."""
    buffer = b""
    while len(buffer) < EVENT_LIMIT and (block := next_block(stream, document, len(buffer))):
        buffer += block
        if match := _EVENTS.search(buffer):
            document.head, document.found_events = buffer[: match.start()], True
            return buffer[match.end() :]
        stripped = buffer.lstrip()
        if stripped.startswith(b"["):
            document.found_events = True
            return stripped[1:]
    document.head = buffer
    return b""


def _cut(buffer: bytes) -> int:
    """Return the position after the `}` of the last event that is surely whole, or 0."""
    for separator in _SEPARATORS:
        at = len(buffer)
        for _ in range(_CUTS_TRIED):
            at = buffer.rfind(separator, 0, at)
            if at >= 0 and BOUNDARY.match(buffer, end := at + separator.index(b"}")):
                return end + 1
    last = 0
    for match in BOUNDARY.finditer(buffer):
        last = match.start() + 1
    return last


def pieces(stream: BinaryIO, document: Document) -> Iterator[tuple[int, bytes]]:
    """Yield runs of whole events with their offset in the file; the last one holds the tail.

    Fills `document` while it goes. Only one piece is in memory at a time, unless a single
    event is larger than that.
    """
    rest = _skip_head(stream, document)
    while document.found_events and (block := next_block(stream, document, len(rest))):
        buffer = rest + block if rest else block
        end = _cut(buffer)
        if end:
            yield document.size - len(buffer), buffer[:end]
            rest = buffer[end:].lstrip(b" \t\r\n,")
        elif len(buffer) > EVENT_LIMIT:
            document.broken_off = f"no event ends within {EVENT_LIMIT >> 20} MB"
            rest = b""
        else:
            rest = buffer
    if document.found_events:
        yield document.size - len(rest), rest
