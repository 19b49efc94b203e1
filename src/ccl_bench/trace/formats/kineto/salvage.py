"""Read what is whole in a damaged run of events, and count what is not.

The damages are those that real files have: a job killed while writing, control characters,
bad UTF-8, stray backslashes or quotes in names (pytorch#136180), bare `NaN` and `inf`, missing
values, and two processes writing to one path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ccl_bench.trace.formats.kineto.pieces import BOUNDARY

if TYPE_CHECKING:
    from ccl_bench.trace.formats.kineto.events import Event

    EventType = TypeVar("EventType", bound=Event)

_CONTROL = re.compile(rb"[\x00-\x1f]")
_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)[+-]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NO_VALUE = re.compile(rb":(\s*)(?=[,}])")
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|args)"\s*:)', re.DOTALL)
_STRAY_QUOTE = re.compile(rb'(?<!\\)"')
_ARRAY_END = re.compile(rb"(?:\}|\A)\s*\]")
_ARRAY_END_GUESSES = 3


@dataclass(slots=True)
class Losses:
    """What was repaired and what was lost, over one file."""

    repaired: int = 0
    """Events read after a repair of their text."""
    lost: int = 0
    """Events that could not be read."""
    first_at: int = -1
    """Offset of the first damaged event in the decompressed file, bytes."""
    truncated: bool = False
    """Whether the file ends inside its events."""

    def note(self, at: int) -> None:
        """Remember where the first damage is."""
        if self.first_at < 0:
            self.first_at = at


def repaired(text: bytes) -> bytes:
    """Return `text` with the damages mended that have one meaning only."""
    text = text.decode("utf-8", "replace").encode()
    text = _CONTROL.sub(b" ", text)
    text = _STRAY_BACKSLASH.sub(rb"\\\\", text)
    text = _NOT_A_NUMBER.sub(rb"\1null", text)
    return _NO_VALUE.sub(rb":\1null", text)


def _with_quotes_escaped(text: bytes) -> bytes:
    return _NAME.sub(lambda m: m[1] + _STRAY_QUOTE.sub(rb"\\\"", m[2]) + m[3], text)


def salvaged(
    piece: bytes, offset: int, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> list[EventType]:
    """Return the events of `piece` that can be read, one by one if need be."""
    found: list[EventType] = []
    position = 0
    for end in [*(match.start() + 1 for match in BOUNDARY.finditer(piece)), len(piece)]:
        text = piece[position:end].strip(b" \t\r\n,")
        start, position = position, end
        if not text:
            continue
        for mend in (None, repaired, lambda raw: _with_quotes_escaped(repaired(raw))):
            try:
                events = decoder.decode(b"[" + (mend(text) if mend else text) + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if mend:
                losses.repaired += 1
                losses.note(offset + start)
            found += events
            break
        else:
            losses.lost += 1
            losses.note(offset + start)
    return found


def events_of(
    piece: bytes, offset: int, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> list[EventType]:
    """Return the events of a piece that holds nothing but events."""
    try:
        return decoder.decode(b"[" + piece + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return salvaged(piece, offset, decoder, losses)


def last_events_of(
    piece: bytes, offset: int, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> tuple[list[EventType], bytes]:
    """Return the events of the piece that ends the array, and what stands after the array."""
    for match in islice(_ARRAY_END.finditer(piece), _ARRAY_END_GUESSES):
        try:
            return decoder.decode(b"[" + piece[: match.end()]), piece[match.end() :]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    closing = _array_end_by_depth(piece)
    if closing is None:
        losses.truncated = True
        losses.note(offset + len(piece))
        return salvaged(piece, offset, decoder, losses), b""
    return salvaged(piece[:closing], offset, decoder, losses), piece[closing + 1 :]


def _array_end_by_depth(piece: bytes) -> int | None:
    """Return where the array of events closes, by counting brackets outside strings."""
    depth = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', piece, re.DOTALL):
        mark = token[0]
        if mark in (b"[", b"{"):
            depth += 1
        elif mark in (b"]", b"}"):
            if mark == b"]" and depth == 0:
                return token.start()
            depth -= 1
    return None
