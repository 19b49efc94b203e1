"""Count the events that state a key twice: the decoder keeps the last value, other programs the first.

A decoded event shows nothing of it. Keys are counted in the text first, and only where one stands there more
often than events have it is each event read again, key by key.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.trace.formats.kineto.events import Args, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])

_ARGUMENTS = "args"
_EVENT_FIELDS = msgspec.structs.fields(Event)
_ARGUMENT_FIELDS = [field for field in msgspec.structs.fields(Args) if field.type is not msgspec.Raw]
_COUNTED = {"cat", "name", "ts", "dur", "args", "external_id", "correlation", "collective", "in_elements"}
"""Fields whose keys are counted: to count all of them takes as long as to decode the text."""


def count_ambiguous(text: bytes, events: Sequence[Event]) -> int:
    """Return how many of the events in `text`, which were decoded to `events`, state a known key twice."""
    given = [event.args for event in events if event.args is not None]
    if _stands_oftener(text, events, _EVENT_FIELDS) or _stands_oftener(text, given, _ARGUMENT_FIELDS):
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
        found = json.loads(bytes(event), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return False
    arguments = next((value for key, value in found if key == _ARGUMENTS), None)
    twice = _has_twice(found, _EVENT_FIELDS)
    return twice or (isinstance(arguments, _Pairs) and _has_twice(arguments, _ARGUMENT_FIELDS))


def _has_twice(pairs: _Pairs, fields: Sequence[msgspec.structs.FieldInfo]) -> bool:
    known = {field.encode_name for field in fields}
    held = [key for key, _ in pairs if key in known]
    return len(held) > len(set(held))
