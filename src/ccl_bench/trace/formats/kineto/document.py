"""The text of a Kineto file: events, decoded piece by piece, and the metadata around them.

A trace is `{head "traceEvents": [ event, event, ... ] tail}` or, as other writers have it, a bare list of
events. Damaged pieces are decoded event by event, and what is lost is counted.

A decoded event shows nothing of a key that it states twice: the decoder keeps the last value, other programs
the first. Keys are counted in the text, and only where one is there more often than events have it is each
event read again, key by key.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ccl_bench.base.text import json_decoder
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import Args, Event, ExactEvent
from ccl_bench.trace.values import LATEST_NS, ArrayForm, array_pieces, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from ccl_bench.trace.values import Document

    EventType = TypeVar("EventType", bound=Event)
    Taking = Callable[..., int | None]
    Decoder = msgspec.json.Decoder[list[Event]]
    from ccl_bench.base.lazy_imports import pl

BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|tid|ts|args|bp)\"\s*:)")
EVENTS = ArrayForm(
    start=re.compile(rb'"traceEvents"\s*:\s*\['),
    boundary=BOUNDARY,
    item="event",
    separators=(b"\n  },\n  {", b'},{"', b"},\n{", b"}, {", b"},\n"),
    may_be_bare=True,
)

_BETWEEN = b" \t\r\n,"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_CONTROL = re.compile(rb"[\x00-\x1f]")
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rb'\\(?:(["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|' + _PAIR + rb")|(u[dD][89a-fA-F][0-9a-fA-F]{2}))?"
)
_NO_VALUE = re.compile(
    b"(" + _STRING + rb")|(?<=[:\[,])\s*+[+-]?(?:nan|inf(?:inity)?)\b|(?<=:)\s*+(?=[,}])",
    re.IGNORECASE | re.DOTALL,
)
_NAME = re.compile(
    rb'("name"\s*:\s*")((?:(?!"name"\s*:).)*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|args)"\s*:|\}))',
    re.DOTALL,
)
_KEY_OR_VALUE = re.compile(rb'"\s*[:,]')
_STRAY_QUOTE = re.compile(rb'(?<!\\)"')
_TEXT = re.compile(_STRING, re.DOTALL)
_MARK = re.compile(_STRING + rb"|([\[\]{}])", re.DOTALL)
_ARRAY_END = re.compile(rb"\}\s*+\]")
_EMPTY_ARRAY = re.compile(rb"\s*+\]")
_ARRAY_END_GUESSES = 3
_ENDS_TRIED = 1000

_PARTS_OF_AN_EVENT = 64
"""Into how many parts an event may have been cut by objects in it that look like events."""

_UNFINISHED_BYTES = 4 << 20


@dataclass(slots=True)
class Losses:
    """Repaired and lost events of one file."""

    repaired: int = 0
    """Events read after a repair of their text."""
    lost: int = 0
    """Events that could not be read."""
    ambiguous: int = 0
    """Events that state a key twice."""
    first_at: int = -1
    """Offset of the first damaged event in the decompressed file, bytes."""
    truncated: bool = False
    """Whether the file ends inside its events."""

    def note(self, at: int) -> None:
        """Remember where the first damage is."""
        if self.first_at < 0:
            self.first_at = at


def repaired(text: bytes) -> bytes:
    """Return `text` with unambiguous damage repaired."""
    text = text.decode("utf-8", "replace").encode()
    text = _CONTROL.sub(b" ", text)
    text = _ESCAPE.sub(lambda m: m[0] if m[1] else rb"\ufffd" if m[2] else rb"\\", text)
    return _NO_VALUE.sub(lambda m: m[1] or b" null", text)


def _with_quotes_escaped(text: bytes) -> bytes:
    """Return `text` with the quotes inside names escaped, except in names of two torn events."""
    if any(_KEY_OR_VALUE.search(name[2]) for name in _NAME.finditer(text)):
        return text
    return _NAME.sub(lambda m: m[1] + _STRAY_QUOTE.sub(lambda _: rb"\"", m[2]) + m[3], text)


def decoded(
    text: bytes, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> list[EventType] | None:
    """Return the events of `text` if it is made of whole, undamaged events, else None."""
    try:
        events = decoder.decode(b"[" + text + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    losses.ambiguous += count_ambiguous(text, events)
    return events


def salvaged(
    piece: bytes, offset: int, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses, *, more: bool
) -> tuple[list[EventType], bytes]:
    """Return the events of `piece` that can be read, one by one if need be.

    If `more` of the file follows, the start of an event that may go on there is returned too.
    """
    cuts = [0, *(match.start() + 1 for match in BOUNDARY.finditer(piece)), len(piece)]
    depths: list[int] = []
    result: list[EventType] = []
    position = 0
    while position < len(cuts) - 1:
        start = cuts[position]
        part = piece[start : cuts[position + 1]].strip(_BETWEEN)
        position += 1
        if (events := decoded(part, decoder, losses)) is None:
            depths = depths or [_depth(piece[begin:end]) for begin, end in pairwise(cuts)]
            following, may_go_on = _other_parts(depths[position - 1 : position + _PARTS_OF_AN_EVENT - 1])
            together = piece[start : cuts[position + following]].strip(_BETWEEN)
            if following and (events := decoded(together, decoder, losses)) is not None:
                position += following
            elif more and may_go_on and len(piece) - start < _UNFINISHED_BYTES:
                return result, piece[start:].strip(_BETWEEN)
            else:
                events = _repaired(part, offset + start, decoder, losses)
        result += events
    return result, b""


def _other_parts(depths: list[int]) -> tuple[int, bool]:
    """Return the number of following parts that belong to the event that starts with the first.

    Where its end is not found, also whether it may lie after the piece.
    """
    for following, depth in enumerate(accumulate(depths)):
        if depth <= 0:
            return (following if depth == 0 else 0), False
    return 0, len(depths) < _PARTS_OF_AN_EVENT


def _depth(text: bytes) -> int:
    """Return the number of brackets outside strings that `text` opens and does not close."""
    without_text = _TEXT.sub(b"", text)
    return sum(without_text.count(mark) for mark in (b"[", b"{")) - sum(
        without_text.count(mark) for mark in (b"]", b"}")
    )


def _repaired(
    text: bytes, at: int, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> list[EventType]:
    """Return the events of damaged `text` after repairing it, or count it as lost."""
    losses.note(at)
    for repair in (repaired, lambda raw: repaired(_with_quotes_escaped(raw))):
        if (events := decoded(repair(text), decoder, losses)) is not None:
            losses.repaired += 1
            return events
    losses.lost += 1
    return []


def whole_array(
    piece: bytes, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> tuple[list[EventType], bytes] | None:
    """Return the events of a piece in which the array ends, and the text after it; None if it goes on."""
    if match := _EMPTY_ARRAY.match(piece):
        return [], piece[match.end() :]
    for match in islice(_ARRAY_END.finditer(piece), _ARRAY_END_GUESSES):
        if (events := decoded(piece[: match.end() - 1], decoder, losses)) is not None:
            return events, piece[match.end() :]
    return None


def last_events_of(
    piece: bytes, offset: int, decoder: msgspec.json.Decoder[list[EventType]], losses: Losses
) -> tuple[list[EventType], bytes]:
    """Return the events of the piece that ends the array, and the text after the array."""
    if ended := whole_array(piece, decoder, losses):
        return ended
    closing = _array_end(piece)
    if closing is None:
        losses.truncated = True
        losses.note(offset + len(piece))
        return salvaged(piece, offset, decoder, losses, more=False)
    return salvaged(piece[:closing], offset, decoder, losses, more=False)[0], piece[closing + 1 :]


def _array_end(piece: bytes) -> int | None:
    """Return the position where the array of events closes, or None if it does not.

    What follows it must be the rest of an object, or nothing. Where that is cut off too, the
    bracket that closes more than was opened is taken, unless events follow it.
    """
    end = len(piece)
    ends: list[int] = []
    while (end := piece.rfind(b"]", 0, end)) >= 0 and len(ends) < _ENDS_TRIED:
        ends.append(end)
    for at in reversed(ends):
        tail = piece[at + 1 :].strip()
        before = piece[max(0, at - 99) : at].rstrip()[-1:]
        if before in {b"", b"}", b","} and (not tail or _ends_object(tail)):
            return at
    return _surplus_bracket(piece) if _depth(piece) < 0 else None


def _surplus_bracket(piece: bytes) -> int | None:
    depth = 0
    for mark in _MARK.finditer(piece):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(mark[1], 0)
        if depth < 0:
            at = mark.start()
            return at if mark[1] == b"]" and not BOUNDARY.search(piece, at) else None
    return None


def _ends_object(text: bytes) -> bool:
    """Whether `text` is the rest of an object after one of its values."""
    if text[:1] not in {b",", b"}"}:
        return False
    try:
        msgspec.json.decode(b"{" + text.lstrip(_BETWEEN))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


_LONG_FRACTION = re.compile(rb'"(?:ts|dur)"\s*:\s*"?(?:\d{14,}|[89]\d{12})\.\d')
"""Microseconds with more digits than a double holds (torch 2.2 and 2.3, kineto#919)."""

_SAMPLE_BYTES = 4 << 10
"""Bytes at the end of each piece but the first that are looked at for such times."""

_TAIL_LIMIT = 64 << 20


_INEXACT: Decoder = json_decoder(list[Event])
_EXACT: Decoder = json_decoder(list[ExactEvent])


def decoder_for(decoder: Decoder | None, piece: bytes) -> Decoder:
    """Return a decoder that keeps every digit of the times in `piece`; once exact, always exact."""
    start = max(0, len(piece) - _SAMPLE_BYTES) if decoder else 0
    if decoder and (decoder is _EXACT or not _LONG_FRACTION.search(piece, start)):
        return decoder
    return _EXACT if _LONG_FRACTION.search(piece, start) else _INEXACT


def event_lists(stream: BinaryIO, document: Document, losses: Losses, taken: Taking) -> Iterator[list[Event]]:
    """Yield the events of a file, those of one piece at a time, and fill `document` and `losses`.

    Only those events are decoded here that `taken`, which is `Gathering.taken`, leaves.
    """
    decoder: Decoder | None = None
    unfinished = b""
    pieces = array_pieces(stream, document, EVENTS)
    offset, piece = next(pieces, (0, b""))
    for next_offset, next_piece in pieces:
        text = unfinished + b"," + piece if unfinished else piece
        offset, unfinished = offset - len(text) + len(piece), b""
        if (end := taken(text, must_end=False)) is not None:
            if end < len(text):
                document.tail = _rest_of_file(text[end:], next_piece, pieces)
                return
            offset, piece = next_offset, next_piece
            continue
        decoder = decoder_for(decoder, piece)
        if (events := decoded(text, decoder, losses)) is not None:
            yield events
        elif ended := whole_array(text, decoder, losses):
            yield ended[0]
            document.tail = _rest_of_file(ended[1], next_piece, pieces)
            return
        else:
            events, unfinished = salvaged(text, offset, decoder, losses, more=True)
            yield events
        offset, piece = next_offset, next_piece
    if document.found_array:
        text = unfinished + b"," + piece if unfinished else piece
        if (end := taken(text, must_end=True)) is not None:
            document.tail = text[end:]
            return
        events, document.tail = last_events_of(text, offset, decoder_for(decoder, piece), losses)
        yield events


def _rest_of_file(first: bytes, second: bytes, pieces: Iterator[tuple[int, bytes]]) -> bytes:
    """Return the text after the events that was cut as if it held events too."""
    tail = first + b"," + second
    for _, piece in pieces:
        if len(tail) < _TAIL_LIMIT:
            tail += b"," + piece
    return tail


_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])

_ARGUMENTS = "args"
_EVENT_FIELDS = msgspec.structs.fields(Event)
_ARGUMENT_FIELDS = [field for field in msgspec.structs.fields(Args) if field.type is not msgspec.Raw]
_COUNTED = {"cat", "name", "ts", "dur", "args", "external_id", "correlation", "collective", "in_elements"}
"""Fields whose keys are counted: to count all of them takes as long as to decode the text."""


def count_ambiguous(text: bytes, events: Sequence[Event]) -> int:
    """Return the number of events in `text`, which were decoded to `events`, that state a known key twice."""
    arguments = [event.args for event in events if event.args is not None]
    if _stands_oftener(text, events, _EVENT_FIELDS) or _stands_oftener(text, arguments, _ARGUMENT_FIELDS):
        return sum(map(_states_twice, _EVENTS.decode(b"[" + text + b"]")))
    return 0


def _stands_oftener(
    text: bytes, objects: Sequence[object], fields: Sequence[msgspec.structs.FieldInfo]
) -> bool:
    """Whether the key of a field stands in the text more often than objects have another value than none."""
    for field in (field for field in fields if field.name in _COUNTED):
        count = text.count(f'"{field.encode_name}"'.encode())
        if count and count > len(objects) - [*map(attrgetter(field.name), objects)].count(field.default):
            return True
    return False


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of one object, as they stand in the text."""


def _states_twice(event: msgspec.Raw) -> bool:
    try:
        pairs = json.loads(bytes(event), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return False
    arguments = next((value for key, value in pairs if key == _ARGUMENTS), None)
    twice = _has_twice(pairs, _EVENT_FIELDS)
    return twice or (isinstance(arguments, _Pairs) and _has_twice(arguments, _ARGUMENT_FIELDS))


def _has_twice(pairs: _Pairs, fields: Sequence[msgspec.structs.FieldInfo]) -> bool:
    names = {field.encode_name for field in fields}
    keys = [key for key, _ in pairs if key in names]
    return len(keys) > len(set(keys))


_MAX_METADATA = 64 << 20


def metadata(head: bytes, tail: bytes) -> tuple[dict[str, Any], bool]:
    """Return the top-level keys around the events, and whether none of them was lost.

    `head` ends before `"traceEvents"`, `tail` starts after the array closed; together, with an
    empty array between, they are one JSON object. A bare array of events has neither.
    """
    if len(head) + len(tail) > _MAX_METADATA:
        tail = b""
    opening = head.strip().removeprefix(codecs.BOM_UTF8).rstrip(b",") or b"{"
    closing = tail.strip().lstrip(b",").strip()
    joint = b"," if closing not in {b"", b"}"} and opening != b"{" else b""
    together = opening + joint + (closing or b"}")
    is_whole = bool(closing) or not head.strip()
    for repair in (bytes, repaired):
        if (values := _object(repair(together))) is not None:
            return values, is_whole
    return _by_pattern(head) | _by_pattern(tail) | (_object(opening + b"}") or {}), False


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _by_pattern(text: bytes) -> dict[str, Any]:
    """Return the two keys that everything depends on from text that does not parse."""
    values: dict[str, Any] = {}
    if base := re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\s*[,}]', text):
        values["baseTimeNanoseconds"] = int(base[1])
    if rank := re.search(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\s*[,}]', text):
        values["distributedInfo"] = {"rank": int(rank[1])}
    return values


def base_time_ns(meta: dict[str, Any]) -> int:
    """Return the time that those in the file are relative to, ns since the epoch; 0 if absolute."""
    base = whole(meta.get("baseTimeNanoseconds"))
    return base if base is not None and 0 <= base < LATEST_NS else 0


def distributed(meta: dict[str, Any]) -> dict[str, Any]:
    """Return `distributedInfo`, or an empty mapping."""
    info = meta.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def rank(meta: dict[str, Any]) -> int | None:
    """Return the rank that the recording process had, if the file says."""
    return whole(distributed(meta).get("rank"))


def world_size(meta: dict[str, Any]) -> int | None:
    """Return the number of ranks in the recorded job, if the file says."""
    return whole(distributed(meta).get("world_size"))


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def devices(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `devices` rows."""
    entries = _entries(meta.get("deviceProperties"))
    return TABLES["devices"].frame(
        {
            "device": [whole(d.get("id")) for d in entries],
            "name": [str(d.get("name", "")) for d in entries],
            "memory_bytes": [whole(d.get("totalGlobalMem")) for d in entries],
            "sms": [whole(d.get("numSms")) for d in entries],
            "threads_per_sm": [
                whole(d.get("maxThreadsPerMultiprocessor", d.get("maxThreadsPerMultiProcessor")))
                for d in entries
            ],
        }
    )


def process_groups(meta: dict[str, Any]) -> pl.DataFrame:
    """Return the `process_groups` rows, from `distributedInfo.pg_config`."""
    config = distributed(meta).get("pg_config")
    entries = _entries(list(config.values()) if isinstance(config, dict) else config)
    return TABLES["process_groups"].frame(
        {
            "name": [str(g.get("pg_name", "")) for g in entries],
            "description": [str(g.get("pg_desc", "")) for g in entries],
            "backend": [str(g.get("backend_config", g.get("backend", ""))) for g in entries],
            "size": [whole(g.get("pg_size", g.get("group_count"))) for g in entries],
            "ranks": [_ranks(g.get("ranks")) for g in entries],
        }
    )


def _ranks(value: Any) -> list[int] | None:
    members = [whole(member) for member in value] if isinstance(value, list) else []
    return [m for m in members if m is not None] if members and None not in members else None


def attributes(meta: dict[str, Any]) -> dict[str, str]:
    """Return the versions and names that the file records."""
    job = distributed(meta)
    values = {key: job.get(key) for key in ("backend", "nccl_version")}
    versions = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "host_name")
    values |= {key: meta.get(key) for key in versions}
    return {key: str(value) for key, value in values.items() if value is not None}
