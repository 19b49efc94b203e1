"""From the bytes of a file to its events, one piece at a time, damaged pieces event by event."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.trace.formats.kineto.events import Event, ExactEvent
from ccl_bench.trace.formats.kineto.pieces import Document, pieces
from ccl_bench.trace.formats.kineto.salvage import Losses, decoded, last_events_of, salvaged, whole_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    Taking = Callable[..., int | None]
    Decoder = msgspec.json.Decoder[list[Event]]

_LONG_FRACTION = re.compile(rb'"(?:ts|dur)"\s*:\s*"?(?:\d{14,}|[89]\d{12})\.\d')
"""Microseconds with more digits than a double holds (torch 2.2 and 2.3, kineto#919)."""

_SAMPLE_BYTES = 4 << 10
"""Bytes at the end of each piece but the first that are looked at for such times."""

_TAIL_LIMIT = 64 << 20


def decoder_for(decoder: Decoder | None, piece: bytes) -> Decoder:
    """Return a decoder that keeps every digit of the times in `piece`; once exact, always exact."""
    start = max(0, len(piece) - _SAMPLE_BYTES) if decoder else 0
    if decoder and (decoder.type == list[ExactEvent] or not _LONG_FRACTION.search(piece, start)):
        return decoder
    kind = ExactEvent if _LONG_FRACTION.search(piece, start) else Event
    return msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]


def event_lists(stream: BinaryIO, document: Document, losses: Losses, taken: Taking) -> Iterator[list[Event]]:
    """Yield the events of a file, those of one piece at a time, and fill `document` and `losses`.

    Only those events are decoded here that `taken`, which is `Gathering.taken`, leaves.
    """
    decoder: Decoder | None = None
    unfinished = b""
    found = pieces(stream, document)
    offset, piece = next(found, (0, b""))
    for next_offset, next_piece in found:
        text = unfinished + b"," + piece if unfinished else piece
        offset, unfinished = offset - len(text) + len(piece), b""
        if (end := taken(text, must_end=False)) is not None:
            if end < len(text):
                document.tail = _rest_of_file(text[end:], next_piece, found)
                return
            offset, piece = next_offset, next_piece
            continue
        decoder = decoder_for(decoder, piece)
        if (events := decoded(text, decoder)) is not None:
            yield events
        elif ended := whole_array(text, decoder):
            yield ended[0]
            document.tail = _rest_of_file(ended[1], next_piece, found)
            return
        else:
            events, unfinished = salvaged(text, offset, decoder, losses, more=True)
            yield events
        offset, piece = next_offset, next_piece
    if document.found_events:
        text = unfinished + b"," + piece if unfinished else piece
        if (end := taken(text, must_end=True)) is not None:
            document.tail = text[end:]
            return
        events, document.tail = last_events_of(text, offset, decoder_for(decoder, piece), losses)
        yield events


def _rest_of_file(first: bytes, second: bytes, others: Iterator[tuple[int, bytes]]) -> bytes:
    """Return the text after the events that was cut as if it held events too."""
    tail = first + b"," + second
    for _, piece in others:
        if len(tail) < _TAIL_LIMIT:
            tail += b"," + piece
    return tail
