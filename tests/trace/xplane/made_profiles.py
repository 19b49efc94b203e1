"""Profiles of XLA, made up: an encoder of protobuf's wire format, and planes, lines and events in it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Value = int | float | str | bytes


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it; negative ones as 64 bits."""
    number %= 1 << 64
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def put(number: int, value: Value) -> bytes:
    """Return a field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(*fields: tuple[int, Value]) -> bytes:
    """Return a message of these fields."""
    return b"".join(put(number, value) for number, value in fields)


@dataclass
class Event:
    """One event: times in ns, and what is stated about it alone and about all of its name."""

    name: str
    start_ns: float
    length_ns: float
    stated: Mapping[str, Value] = field(default_factory=dict)
    of_name: Mapping[str, Value] = field(default_factory=dict)


class MadePlane:
    """A plane that numbers the names of its events and statements as it meets them."""

    def __init__(self, name: str, **stated: Value) -> None:
        self._name, self._stated = name, stated
        self._lines: list[bytes] = []
        self._names: dict[str, tuple[int, Mapping[str, Value]]] = {}
        self._stats: dict[str, int] = {}

    def _stat(self, name: str, value: Value) -> bytes:
        number = self._stats.setdefault(name, len(self._stats) + 1)
        kind = {int: 4, float: 2, str: 5, bytes: 6}[type(value)]
        return message((1, number), (kind, value))

    def line(self, name: str, events: Iterable[Event] = (), number: int = 0) -> MadePlane:
        """Add a line."""
        found = [(1, number), (2, name), (3, 0)]
        for event in events:
            place, _ = self._names.setdefault(event.name, (len(self._names) + 1, event.of_name))
            stats = [(4, self._stat(key, value)) for key, value in event.stated.items()]
            times = (2, round(event.start_ns * 1000)), (3, round(event.length_ns * 1000))
            found.append((4, message((1, place), *times, *stats)))
        self._lines.append(message(*found))
        return self

    def name(self, name: str, **stated: Value) -> MadePlane:
        """Add the name of events that the plane has none of."""
        self._names[name] = (len(self._names) + 1, stated)
        return self

    def encoded(self) -> bytes:
        """Return the plane."""
        names = []
        for name, (number, stated) in self._names.items():
            stats = [(5, self._stat(key, value)) for key, value in stated.items()]
            names.append((4, message((1, number), (2, message((1, number), (2, name), *stats)))))
        own = [(6, self._stat(key, value)) for key, value in self._stated.items()]
        stats = [
            (5, message((1, number), (2, message((1, number), (2, name)))))
            for name, number in self._stats.items()
        ]
        return message((2, self._name), *((3, line) for line in self._lines), *names, *stats, *own)


def write_profile(folder: Path, *planes: MadePlane, name: str = "host.xplane.pb") -> Path:
    """Write a profile of these planes, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(put(1, plane.encoded()) for plane in planes))
    return folder


def shape(kind: int, *sizes: int) -> bytes:
    """Return an array's shape; 11 is f32, 16 bf16."""
    return message((2, kind), *((3, size) for size in sizes))


def packed(*numbers: int) -> bytes:
    """Return repeated numbers as one field holds them."""
    return b"".join(map(varint, numbers))


def instruction(name: str, opcode: str, of: bytes, number: int, *more: tuple[int, Value]) -> bytes:
    """Return an instruction of a program."""
    return message((1, name), (2, opcode), (3, of), *more, (35, number))


def program(
    name: str, instructions: Sequence[bytes], devices: Sequence[Sequence[int]], others: Sequence[bytes] = ()
) -> bytes:
    """Return an `HloProto`; `devices` are for each partition those of its replicas, `others` computations."""
    entry = message((1, "main"), *((2, each) for each in instructions), (5, 1), (6, 1))
    assigned = message(
        (1, len(devices[0])), (2, len(devices)), *((3, message((1, packed(*ids)))) for ids in devices)
    )
    computations = [(3, entry), *((3, each) for each in others)]
    return message((1, message((1, name), (2, "main"), *computations, (15, assigned))))


def programs(**found: tuple[int, bytes]) -> MadePlane:
    """Return the plane of programs, given by name as id and content."""
    plane = MadePlane("/host:metadata")
    for name, (number, content) in found.items():
        plane.name(f"{name}({number})", **{"Hlo Proto": content})
    return plane
