"""Reader of protobuf's wire format without its library: fields of one message, or of many at once.

A message is a sequence of fields. Each begins with a varint that holds its number and how its value is
written: as a varint, as 4 or 8 bytes, or as bytes with their length before them, which may be a message.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.lazy_imports import np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""How a value is written."""

_VARINT_BYTES = 10
"""Most bytes of a varint."""

_SIGN, _WHOLE = 1 << 63, 1 << 64


class DamagedMessageError(ValueError):
    """Bytes that are no message: a field ends outside of it, or is written in no known way."""


class Field(NamedTuple):
    """One field of a message in a buffer."""

    number: int
    value: int
    """Signed value of a varint; of others where it begins."""
    end: int
    """Where the value ends; 0 for a varint."""


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message that lies at `[start, end)`; DamagedMessageError if it is none."""
    place, stop = start, len(data) if end is None else end
    while place < stop:
        tag, place = read_varint(data, place, stop)
        kind = tag & 7
        if kind == VARINT:
            value, place = read_varint(data, place, stop)
            yield Field(tag >> 3, value - _WHOLE if value >= _SIGN else value, 0)
            continue
        if kind == BYTES:
            length, place = read_varint(data, place, stop)
        elif kind in (FIXED_64, FIXED_32):
            length = 8 if kind == FIXED_64 else 4
        else:
            raise DamagedMessageError(f"a field is written in a way that does not exist, {kind}")
        if length > stop - place:
            raise DamagedMessageError("a field ends outside of its message")
        yield Field(tag >> 3, place, place + length)
        place += length


def read_varint(data: bytes, place: int, stop: int) -> tuple[int, int]:
    """Return the varint at `place`, unsigned, and where it ends."""
    value = shift = 0
    for at in range(place, min(stop, place + _VARINT_BYTES)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % _WHOLE, at + 1
        shift += 7
    raise DamagedMessageError("a number does not end")


def split_fields(data: bytes, start: int, end: int, number: int) -> tuple[list[Field], Numbers, Numbers]:
    """Return the fields of a message that is mostly one repeated message: the others, and the places of it.

    The arrays hold begin and end of each message with the number.
    """
    other_fields: list[Field] = []
    begins, ends = array("q"), array("q")
    tag, place = number << 3 | BYTES, start
    while place < end:
        if data[place] == tag and place + 1 < end and data[place + 1] < 0x80:
            begin, length = place + 2, data[place + 1]
        elif data[place] == tag:
            length, begin = read_varint(data, place + 1, end)
        else:
            field = next(fields(data, place, end))
            other_fields.append(field)
            # A varint ends where it is read to, behind the tag.
            place = field.end or read_varint(data, read_varint(data, place, end)[1], end)[1]
            continue
        place = begin + length
        if place > end:
            raise DamagedMessageError("a field ends outside of its message")
        begins.append(begin)
        ends.append(place)
    return other_fields, np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)


class Message:
    """The fields of one small message by number."""

    __slots__ = ("_fields", "data")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self.data = data
        self._fields: dict[int, list[Field]] = {}
        for field in fields(data, start, end):
            self._fields.setdefault(field.number, []).append(field)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def holds_others(self, *known_numbers: int) -> bool:
        """Whether there are fields of other numbers than those known."""
        return not self._fields.keys() <= {*known_numbers}

    def number(self, number: int) -> int:
        """Return the last value of a signed number; 0 without one."""
        occurrences = self._fields.get(number)
        return occurrences[-1].value if occurrences else 0

    def each(self, number: int) -> list[Field]:
        """Return the values of a repeated field, unread."""
        return self._fields.get(number, [])

    def bytes(self, number: int) -> bytes:
        """Return the last value of bytes; empty without one."""
        occurrences = self._fields.get(number)
        return self.data[occurrences[-1].value : occurrences[-1].end] if occurrences else b""

    def text(self, number: int) -> str:
        """Return the last value of a text; empty without one."""
        return self.bytes(number).decode("utf-8", "replace")

    def message(self, number: int) -> Message:
        """Return the last value of a message; one without fields where there is none."""
        occurrences = self._fields.get(number)
        return Message(self.data, occurrences[-1].value, occurrences[-1].end) if occurrences else Message(b"")

    def messages(self, number: int) -> list[Message]:
        """Return the values of a repeated message."""
        return [Message(self.data, field.value, field.end) for field in self._fields.get(number, ())]

    def numbers(self, number: int) -> list[int]:
        """Return the values of a repeated signed number, packed or not."""
        values: list[int] = []
        for field in self._fields.get(number, ()):
            if not field.end:
                values.append(field.value)
                continue
            place = field.value
            while place < field.end:
                value, place = read_varint(self.data, place, field.end)
                values.append(value - _WHOLE if value >= _SIGN else value)
        return values


class FieldTable(NamedTuple):
    """The fields of many messages: one entry a field, `message` being the place of its message."""

    message: Numbers
    number: Numbers
    value: Numbers
    """Signed value of a varint; of others where it begins."""
    end: Numbers
    """Where the value ends; 0 for a varint."""

    def of(self, number: int) -> FieldTable:
        """Return the fields of one number."""
        is_number = self.number == number
        return FieldTable(*(column[is_number] for column in self))

    def values(self, number: int, messages: int) -> Numbers:
        """Return the value of one number in each of so many messages; 0 if it has none."""
        result = np.zeros(messages, dtype=np.int64)
        of_number = self.of(number)
        result[of_number.message] = of_number.value
        return result


def field_table(data: bytes, starts: Sequence[int] | Numbers, ends: Sequence[int] | Numbers) -> FieldTable:
    """Return the fields of many messages of a buffer, all messages at once: field by field.

    Raises DamagedMessageError if one is no message.
    """
    octets = np.frombuffer(data, dtype=np.uint8)
    place, stop = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    message = np.arange(place.size, dtype=np.int64)
    rounds: list[FieldTable] = []
    while True:
        unread = place < stop
        message, place, stop = message[unread], place[unread], stop[unread]
        if not message.size:
            break
        tag, place = _varints(octets, place, stop)
        kind = tag & 7
        is_varint, is_bytes = kind == VARINT, kind == BYTES
        is_fixed = (kind == FIXED_64) | (kind == FIXED_32)
        if not np.all(is_varint | is_bytes | is_fixed):
            raise DamagedMessageError("a field is written in a way that does not exist")
        value, after = _varints(octets, place, stop, ~is_fixed)
        length = np.where(is_bytes, value, np.where(kind == FIXED_64, 8, 4))
        if np.any(~is_varint & ((length < 0) | (length > stop - after))):
            raise DamagedMessageError("a field ends outside of its message")
        end = np.where(is_varint, 0, after + length)
        rounds.append(FieldTable(message, tag >> 3, np.where(is_varint, value, after), end))
        place = np.where(is_varint, after, end)
    if not rounds:
        none = np.zeros(0, dtype=np.int64)
        return FieldTable(none, none, none, none)
    return FieldTable(*(np.concatenate(columns) for columns in zip(*rounds, strict=True)))


def _varints(
    octets: NDArray[np.uint8], place: Numbers, stop: Numbers, mask: NDArray[np.bool_] | None = None
) -> tuple[Numbers, Numbers]:
    """Return the signed varints at many places, or at those in `mask`, and the end of each."""
    value, after = np.zeros(place.size, dtype=np.uint64), place.copy()
    unread = np.arange(place.size) if mask is None else np.flatnonzero(mask)
    for turn in range(_VARINT_BYTES):
        at = after[unread]
        if np.any(at >= stop[unread]):
            break
        octet = octets[at]
        value[unread] |= (octet & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * turn)
        after[unread] += 1
        unread = unread[octet >= 0x80]
        if not unread.size:
            return value.view(np.int64), after
    raise DamagedMessageError("a number does not end")
