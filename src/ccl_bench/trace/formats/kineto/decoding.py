"""Decoding of Kineto events without C.

A decoded event shows nothing of a key that it states twice: the decoder keeps the last value, other programs
the first. Keys are counted in the text, and only where one is there more often than events have it is each
event read again, key by key.
"""

from __future__ import annotations

import json
import re
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.text import json_decoder
from ccl_bench.trace.formats.kineto.events import Args, Event, ExactEvent
from ccl_bench.trace.values import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    Decoder = msgspec.json.Decoder[list[Event]]

_LONG_FRACTION = re.compile(rb'"(?:ts|dur)"\s*:\s*"?(?:\d{14,}|[89]\d{12})\.\d')
"""Microseconds with more digits than a double holds (torch 2.2 and 2.3, kineto#919)."""

_SAMPLE_BYTES = 4 << 10
"""Bytes at the end of each text but the first that are looked at for such times."""

_INEXACT: Decoder = json_decoder(list[Event])
_EXACT: Decoder = json_decoder(list[ExactEvent])


def decoder_for(decoder: Decoder | None, text: bytes) -> Decoder:
    """Return a decoder that keeps every digit of the times in `text`; once exact, always exact."""
    start = max(0, len(text) - _SAMPLE_BYTES) if decoder else 0
    if decoder and (decoder is _EXACT or not _LONG_FRACTION.search(text, start)):
        return decoder
    return _EXACT if _LONG_FRACTION.search(text, start) else _INEXACT


_ARRAY_END = re.compile(rb"(?:\}|\A)\s*+\]")
_ENDS_TRIED = 3
"""Ends that are tried one after the other: each is a decoding of all before it."""


def decoded(text: bytes, decoder: Decoder, *, must_end: bool) -> tuple[list[Event], int, int] | None:
    """Return the events of `text`, how many state a key twice, and where the text after their array begins.

    None if the text is damaged. The array may end in it or not, unless it must.
    """
    whole = [] if must_end else [(len(text), len(text))]
    endings = islice(_ARRAY_END.finditer(text), _ENDS_TRIED)
    for end, behind in chain(whole, ((match.end() - 1, match.end()) for match in endings)):
        try:
            events = decoder.decode(b"[" + text[:end] + b"]")
        except UNREADABLE:
            continue
        return events, _count_ambiguous(text[:end], events), behind
    return None


_RAW_EVENTS = json_decoder(list[msgspec.Raw])

_EVENT_FIELDS = msgspec.structs.fields(Event)
_ARGUMENT_FIELDS = [field for field in msgspec.structs.fields(Args) if field.type is not msgspec.Raw]
_COUNTED = {"cat", "name", "ts", "dur", "args", "external_id", "correlation", "collective", "in_elements"}
"""Fields whose keys are counted: to count all of them takes as long as to decode the text."""


def _count_ambiguous(text: bytes, events: Sequence[Event]) -> int:
    arguments = [event.args for event in events if event.args is not None]
    for fields, objects in ((_EVENT_FIELDS, events), (_ARGUMENT_FIELDS, arguments)):
        for field in (field for field in fields if field.name in _COUNTED):
            count = text.count(f'"{field.encode_name}"'.encode())
            if count and count > len(objects) - [*map(attrgetter(field.name), objects)].count(field.default):
                return sum(map(_states_twice, _RAW_EVENTS.decode(b"[" + text + b"]")))
    return 0


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of one object, as they stand in the text."""


def _states_twice(event: msgspec.Raw) -> bool:
    try:
        pairs = json.loads(bytes(event), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return False
    arguments = next((value for key, value in pairs if key == "args"), None)
    for of_object, fields in ((pairs, _EVENT_FIELDS), (arguments, _ARGUMENT_FIELDS)):
        names = {field.encode_name for field in fields}
        keys = [key for key, _ in of_object if key in names] if isinstance(of_object, _Pairs) else []
        if len(keys) > len(set(keys)):
            return True
    return False
