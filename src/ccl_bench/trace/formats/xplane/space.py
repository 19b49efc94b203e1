"""Planes of a profile: the position of each in its file, and its content after reading.

A profile (`XSpace`) is a list of planes: one for each device, one for the threads of the host, one with the
programs. A plane is read whole and alone. The names of its events, and what is stated about all events of a
name, stand once in it.

Source of the numbers of fields: `xplane.proto` of https://github.com/openxla/xla.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccl_bench.trace.protobuf import (
    BYTES,
    DamagedMessageError,
    Field,
    FieldTable,
    Message,
    field_table,
    fields,
    read_varint,
    split_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from numpy.typing import NDArray

    from ccl_bench.trace.protobuf import Numbers

HOST, PROGRAMS, TASK = "/host:CPU", "/host:metadata", "Task Environment"
"""Names of the planes that are no devices."""

Value = int | float | str | bytes
"""What is stated about an event or a plane."""


class _SpaceField:
    PLANE, ERROR, WARNING = 1, 2, 3


class _PlaneField:
    NAME, LINE, EVENT_NAME, STAT_NAME, STAT = 2, 3, 4, 5, 6


class _LineField:
    ID, NAME, START_NS, EVENT, SHOWN_NAME = 1, 2, 3, 4, 11


class _EventField:
    NAME, OFFSET_PS, DURATION_PS, STAT = 1, 2, 3, 4


class _StatField:
    NAME, DOUBLE, UNSIGNED, SIGNED, TEXT, BYTES, REFERENCE = 1, 2, 3, 4, 5, 6, 7


_DOUBLE = struct.Struct("<d")

_HEAD_BYTES = 4096
"""Bytes at the beginning of a plane in which its name stands."""


class PlaneSpan(NamedTuple):
    """Position of a plane in its file."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class Space:
    """Positions of the planes in a file."""

    planes: list[PlaneSpan] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the profiler itself."""
    cut_at: int | None = None
    """Where the bytes stop to be a profile; what follows is left out."""

    def plane(self, name: str) -> PlaneSpan | None:
        """Return the plane of a name, or None."""
        return next((plane for plane in self.planes if plane.name == name), None)


def find_planes(stream: BinaryIO) -> Space:
    """Return the positions of the planes in an open file; only the beginning of each is read."""
    space, size = Space(), stream.seek(0, 2)
    place = 0
    while place < size:
        stream.seek(place)
        head = stream.read(_HEAD_BYTES)
        try:
            tag, start = read_varint(head, 0, len(head))
            number = tag >> 3
            if tag & 7 != BYTES or not number:
                raise DamagedMessageError("a profile holds nothing but messages and texts")
            length, start = read_varint(head, start, len(head))
            end = start + length
            if place + end > size:
                raise DamagedMessageError("the file ends inside a plane")
        except DamagedMessageError:
            space.cut_at = place
            break
        if number == _SpaceField.PLANE:
            space.planes.append(PlaneSpan(_plane_name(head[start:end]), place + start, place + end))
        elif number in (_SpaceField.ERROR, _SpaceField.WARNING):
            space.complaints.append(head[start:end].decode("utf-8", "replace"))
        place += end
    return space


def _plane_name(head: bytes) -> str:
    """Return the name of a plane from its beginning; it stands before all that is large."""
    try:
        for part in fields(head):
            if part.number == _PlaneField.NAME:
                return head[part.value : part.end].decode("utf-8", "replace")
    except DamagedMessageError:  # the beginning ends inside a field
        return ""
    return ""


def read_plane(stream: BinaryIO, span: PlaneSpan) -> Plane:
    """Return a plane; DamagedMessageError if it is none."""
    stream.seek(span.start)
    return Plane(span.name, stream.read(span.end - span.start))


@dataclass(frozen=True, slots=True)
class EventName:
    """Values that all events of a name share."""

    name: str
    display_name: str
    """A shorter name; empty if there is none."""
    stats: Mapping[str, Value]


class Plane:
    """One plane: its lines, the names of its events, and its statistics."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.damage: dict[str, str] = {}
        """What of the plane could not be read → why."""
        self._data = data
        all_fields = list(fields(data))
        self._line_fields = [part for part in all_fields if part.number == _PlaneField.LINE]
        stat_names = self._entries(all_fields, _PlaneField.STAT_NAME)
        self.stat_names = {number: message.text(2) for number, message in stat_names}
        self.event_names = {
            number: EventName(message.text(2), message.text(4), self._stats_of(message, 5))
            for number, message in self._entries(all_fields, _PlaneField.EVENT_NAME)
        }
        self.stats = self._stats_of(Message(data), _PlaneField.STAT)

    def _entries(self, all_fields: list[Field], number: int) -> Iterator[tuple[int, Message]]:
        """Yield key and value of each entry of a map."""
        for part in all_fields:
            if part.number != number:
                continue
            try:
                entry = Message(self._data, part.value, part.end)
                yield entry.number(1), entry.message(2)
            except DamagedMessageError as error:
                self.damage["a name"] = str(error)

    def _stats_of(self, message: Message, number: int) -> dict[str, Value]:
        """Return by name the values that a message states in a repeated field."""
        stats: dict[str, Value] = {}
        for stat in message.each(number):
            try:
                parts = list(fields(self._data, stat.value, stat.end))
            except DamagedMessageError as error:
                self.damage["a statement"] = str(error)
                continue
            names = [self.stat_names.get(part.value) for part in parts if part.number == _StatField.NAME]
            values = [self.value(part) for part in parts if part.number != _StatField.NAME]
            name, value = ([None, *names])[-1], ([None, *values])[-1]
            if name is not None and value is not None:
                stats[name] = value
        return stats

    def value(self, statement: Field) -> Value | None:
        """Return the value in a field of a statement; None if it is of no known kind."""
        if statement.number in (_StatField.UNSIGNED, _StatField.SIGNED):
            return statement.value
        if statement.number == _StatField.REFERENCE:
            return self.stat_names.get(statement.value)
        data = self._data[statement.value : statement.end]
        if statement.number == _StatField.DOUBLE and len(data) == _DOUBLE.size:
            return float(_DOUBLE.unpack(data)[0])
        if statement.number == _StatField.TEXT:
            return data.decode("utf-8", "replace")
        return data if statement.number == _StatField.BYTES else None

    @cached_property
    def lines(self) -> list[PlaneLine]:
        """The lines of the plane that are not damaged."""
        intact = []
        for number, part in enumerate(self._line_fields):
            try:
                intact.append(PlaneLine(self, self._data, part.value, part.end))
            except DamagedMessageError as error:
                self.damage[f"line {number}"] = str(error)
        return intact


_AT_ONCE = 1 << 18
"""Events that are read at once: what of them is not kept takes some 100 MB."""


class _Stats(NamedTuple):
    """Statements about events, in columns."""

    event: NDArray[np.int32]
    name: NDArray[np.int32]
    kind: NDArray[np.int8]
    """Number of the field that holds the value."""
    value: Numbers
    end: Numbers


_MOST_NAMES, _MOST_KINDS = (1 << 31) - 1, 127

_NO_STATS = _Stats(
    np.zeros(0, dtype=np.int32),
    np.zeros(0, dtype=np.int32),
    np.zeros(0, dtype=np.int8),
    np.zeros(0, dtype=np.int64),
    np.zeros(0, dtype=np.int64),
)


class PlaneLine:
    """One line of a plane, such as a thread or a stream, with its events in columns, one entry an event."""

    def __init__(self, plane: Plane, data: bytes, start: int, end: int) -> None:
        self._plane, self._data = plane, data
        other_fields, begins, ends = split_fields(data, start, end, _LineField.EVENT)
        head = {part.number: part for part in other_fields}
        texts = {number: data[part.value : part.end] for number, part in head.items() if part.end}
        self.id = head[_LineField.ID].value if _LineField.ID in head else 0
        self.name = texts.get(_LineField.NAME, b"").decode("utf-8", "replace")
        self.start_ns = head[_LineField.START_NS].value if _LineField.START_NS in head else 0
        self.count = begins.size
        self.name_ids: Numbers = np.zeros(self.count, dtype=np.int64)
        self.offset_ps: Numbers = np.zeros(self.count, dtype=np.int64)
        self.duration_ps: Numbers = np.zeros(self.count, dtype=np.int64)
        parts = [_NO_STATS]
        for first in range(0, self.count, _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            events = field_table(data, begins[block], ends[block])
            count = begins[block].size
            self.name_ids[block] = events.values(_EventField.NAME, count)
            self.offset_ps[block] = events.values(_EventField.OFFSET_PS, count)
            self.duration_ps[block] = events.values(_EventField.DURATION_PS, count)
            stats = events.of(_EventField.STAT)
            stat_fields = field_table(data, stats.value, stats.end)
            names = stat_fields.values(_StatField.NAME, stats.message.size)
            statements = FieldTable(
                *(column[stat_fields.number != _StatField.NAME] for column in stat_fields)
            )
            parts.append(
                _Stats(
                    (stats.message[statements.message] + first).astype(np.int32),
                    np.clip(names[statements.message], -1, _MOST_NAMES).astype(np.int32),
                    np.clip(statements.number, 0, _MOST_KINDS).astype(np.int8),
                    statements.value,
                    statements.end,
                )
            )
        self._stats = _Stats(*map(np.concatenate, zip(*parts, strict=True)))

    def times(self, base_ns: int) -> tuple[Numbers, Numbers]:
        """Return start and end of each event, ns; a fraction of a nanosecond is dropped from both."""
        begin = self.start_ns + base_ns
        return begin + self.offset_ps // 1000, begin + (self.offset_ps + self.duration_ps) // 1000

    def names(self) -> list[EventName]:
        """Return the name of each event, with the values that all events of it share."""
        event_names, unknown = self._plane.event_names, EventName("", "", {})
        return [event_names.get(number, unknown) for number in self.name_ids.tolist()]

    def distinct(self, *stat_names: str) -> tuple[list[tuple[EventName, tuple[Value | None, ...]]], Numbers]:
        """Return each name with each combination of stated values, and for each event its place there."""
        stats = self._stats
        statements: list[Numbers] = []  # the row of the statement about each event, -1 for none
        _, first, places = np.unique(self.name_ids, return_index=True, return_inverse=True)
        for name in stat_names:
            row_of_event = np.full(self.count, -1, dtype=np.int64)
            rows = self._stated_as(name)
            row_of_event[stats.event[rows]] = rows
            statements.append(row_of_event)
            codes = np.full(self.count, -1, dtype=np.int64)  # a number for each value
            valued_events = np.flatnonzero(row_of_event >= 0)
            codes[valued_events] = stats.value[row_of_event[valued_events]]
            by_text: dict[bytes, int] = {}
            for event in valued_events[stats.end[row_of_event[valued_events]] > 0].tolist():
                row = row_of_event[event]
                text = self._data[stats.value[row] : stats.end[row]]
                codes[event] = by_text.setdefault(text, len(by_text))
            values, value_places = np.unique(codes, return_inverse=True)
            pairs = places * values.size + value_places
            _, first, places = np.unique(pairs, return_index=True, return_inverse=True)
        event_names, unknown = self._plane.event_names, EventName("", "", {})
        combinations = []
        for event in first.tolist():
            stated_rows = [int(of_events[event]) for of_events in statements]
            stated_values = tuple(
                self._plane.value(Field(*(int(column[row]) for column in stats[2:]))) if row >= 0 else None
                for row in stated_rows
            )
            combinations.append((event_names.get(int(self.name_ids[event]), unknown), stated_values))
        return combinations, places

    def stat_values(self, name: str) -> list[Value | None]:
        """Return the value that is stated under a name about each event; None if none is."""
        values: list[Value | None] = [None] * self.count
        rows = self._stated_as(name)
        columns = (self._stats.event, self._stats.kind, self._stats.value, self._stats.end)
        for event, kind, value, end in zip(*(column[rows].tolist() for column in columns), strict=True):
            values[event] = self._plane.value(Field(kind, value, end))
        return values

    def numbers(self, name: str) -> Numbers:
        """Return the whole number that is stated under a name about each event; 0 if none is."""
        values = np.zeros(self.count, dtype=np.int64)
        rows = self._stated_as(name)
        rows = rows[np.isin(self._stats.kind[rows], (_StatField.UNSIGNED, _StatField.SIGNED))]
        values[self._stats.event[rows]] = self._stats.value[rows]
        return values

    def holds(self, name: str) -> NDArray[np.bool_]:
        """Return for each event whether anything is stated about it under a name."""
        is_stated = np.zeros(self.count, dtype=np.bool_)
        is_stated[self._stats.event[self._stated_as(name)]] = True
        return is_stated

    def _stated_as(self, name: str) -> Numbers:
        """Return the rows of the statements under a name."""
        name_ids = [number for number, stat_name in self._plane.stat_names.items() if stat_name == name]
        return np.flatnonzero(np.isin(self._stats.name, name_ids))
