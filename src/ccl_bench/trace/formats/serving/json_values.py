"""JSON as serving benchmarks write it, one value or one on each line, and the numbers in it.

Everything that cannot be understood is an error that says where. What a file holds is read with types where
it is as usual: Python's own parser, which takes NaN and lone surrogates too, reads all else.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw
from msgspec.json import Decoder

from ccl_bench.base.errors import InputError
from ccl_bench.base.units import SECOND_NS
from ccl_bench.storage import DAMAGED, decode_text
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    Text = bytes | bytearray
    from ccl_bench.base.lazy_imports import pl

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Value = TypeVar("Value")
    Number = TypeVar("Number", float, pl.Series, Floats)

_BLOCK_BYTES = 1 << 20
_COPY_AGAIN = "copy the file again, or repeat the benchmark"

_NOT_BLANK = re.compile(rb"\S")

_NUMBER_BYTES = 1 << 11
"""Digits of a number that Python refuses (4,300) fill a block of so many bytes, wherever they begin."""


def read_whole(stream: BinaryIO) -> tuple[bytearray, str]:
    """Return the readable content of a stream, and the reason why the rest is unreadable."""
    content = bytearray()
    try:
        while block := stream.read(_BLOCK_BYTES):
            content += block
    except DAMAGED as error:
        return content, str(error) or type(error).__name__
    return content, ""


def lines(raw: bytearray) -> Iterator[tuple[int, bytearray]]:
    """Yield the number and content of each line that is not blank."""
    number, start = 0, 0
    while start <= len(raw):
        end = raw.find(b"\n", start)
        line = raw[start : end if end >= 0 else len(raw)]
        number, start = number + 1, end + 1 if end >= 0 else len(raw) + 1
        if line and not line.isspace():
            yield number, line


def parsed(raw: Text) -> Any:
    """Return the value that is `raw`, which was counted as held; ValueError if it is none."""
    try:
        return json.loads(decode_text(raw))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def typed(decoder: Decoder[Value], raw: Text) -> Value | None:
    """Return the value that is `raw`; None if it is not of the decoder's type, or Python may refuse it."""
    blocks = (raw[at : at + _NUMBER_BYTES] for at in range(0, len(raw), _NUMBER_BYTES))
    return None if any(block.isdigit() for block in blocks) else part(decoder, raw)


def part(decoder: Decoder[Value], raw: Text | Raw) -> Value | None:
    """Return a value of a text that `typed` read, None if it is not of the decoder's type."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class Fields(Mapping[str, Any]):
    """An object of a file, whose values are parsed when they are asked for: most lists are not."""

    def __init__(self, texts: dict[str, Raw], file: str) -> None:
        self._texts = texts
        self._file = file

    def __getitem__(self, key: str) -> Any:
        with _whole(self._file):
            return parsed(bytes(self._texts[key]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, key: str) -> Raw | None:
        """Return a value as it stands in the file, None if there is none."""
        return self._texts.get(key)


# Made here and not where it is used: msgspec 0.22 crashes where two threads are the first to need a type.
_OBJECTS = Decoder(dict[str, Raw] | list[dict[str, Raw]])


_NO_RATE = b'"request_rate"'
_INFINITE = re.compile(rb":\s*+-?(Infinity)")


def _spell_infinity(raw: bytearray) -> None:
    """Write the rate of requests without a limit as JSON has it, which the tools do not.

    As long and of the same value, so that whatever reads it finds the same at the same place. The key with
    its quotes stands nowhere else: in a text they are escaped.
    """
    at = raw.find(_NO_RATE)
    while at >= 0:
        at += len(_NO_RATE)
        if match := _INFINITE.match(raw, at):
            raw[slice(*match.span(1))] = b"1e999   "
        at = raw.find(_NO_RATE, at)


def _objects(raw: bytearray, file: str) -> Any:
    """Return the value that is `raw`, objects of which that are not inside another one as Fields."""
    memory.hold_json(raw)
    _spell_infinity(raw)
    objects = typed(_OBJECTS, raw)
    if isinstance(objects, dict):
        return Fields(objects, file)
    return parsed(raw) if objects is None else [Fields(item, file) for item in objects]


def read_objects(stream: BinaryIO, file: str) -> list[Mapping[str, Any]]:
    """Return the object that a file is, those of its list or those on its lines; InputError for all else."""
    raw, damage = read_whole(stream)
    values: list[Any]
    if _holds_several(raw, file):
        values = _by_line(raw, file)
    else:
        with _whole(file, damage):
            value = _objects(raw, file)
        values = value if isinstance(value, list) else [value]
    for number, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise InputError(f"result {number} is not an object", where=file, fix=_COPY_AGAIN)
    return values


def one_value(raw: Text, damage: str, file: str) -> Any:
    """Return the one value that a file is, which was counted as held."""
    with _whole(file, damage):
        return parsed(raw)


@contextlib.contextmanager
def _whole(file: str, damage: str = "") -> Iterator[None]:
    """Turn an error of the parser in the block into one that names the file."""
    try:
        yield
    except ValueError as error:
        message = f"cannot be read to its end: {damage}" if damage else f"is no whole JSON: {error}"
        raise InputError(message, where=file, fix=_COPY_AGAIN) from error


def _holds_several(raw: bytearray, file: str) -> bool:
    """Whether there is a line that is a value, and another after it."""
    begin = _NOT_BLANK.search(raw)
    end = raw.find(b"\n", begin.start()) if begin else -1
    if not begin or end < 0 or not _NOT_BLANK.search(raw, end):
        return False
    try:
        return isinstance(_objects(raw[raw.rfind(b"\n", 0, begin.start()) + 1 : end], file), Mapping)
    except ValueError:
        return False


def _by_line(raw: bytearray, file: str) -> list[Any]:
    objects = []
    for number, line in lines(raw):
        try:
            objects.append(_objects(line, file))
        except ValueError as error:
            raise InputError(
                f"line {number} is not complete JSON: {error}", where=file, fix=_COPY_AGAIN
            ) from error
    return objects


LONGEST_S = 10 * 86_400.0
"""Seconds above which a time is damage and not a slow server."""

MOST_TOKENS = 10**9
_LATEST_NS = 1 << 62


class Impossible(ValueError):  # noqa: N818 (what a value is, not what the program did)
    """A value that no request has, with its name."""


def seconds(value: object, name: str, unit_s: float = 1.0) -> float | None:
    """Return a time in seconds; `unit_s` is the length of the unit it is recorded in."""
    number = _number(value, name)
    if number is None:
        return None
    time_s = in_seconds(number, unit_s)
    if not 0 <= time_s <= LONGEST_S:
        raise Impossible(f"{name} is {number:g}")
    return time_s


_PLAIN = frozenset({int, float})


def whole_column(values: list[Any], unit_s: float = 1.0) -> Floats | None:
    """Return a list of times in seconds; None if one is no time that `seconds` returns."""
    if not _PLAIN.issuperset(map(type, values)):
        return None
    try:
        return as_times(np.array(values, np.float64), unit_s)
    except OverflowError:
        return None


def as_times(values: Floats, unit_s: float = 1.0) -> Floats | None:
    """Do the same for numbers that are known as such."""
    times_s = in_seconds(values, unit_s)
    return times_s if not times_s.size or (times_s.min() >= 0 and times_s.max() <= LONGEST_S) else None


def in_seconds(value: Number, unit_s: float) -> Number:
    """Return times in seconds; dividing by 1000 keeps a digit that multiplying with 0.001 loses."""
    return value / round(1 / unit_s) if unit_s < 1 else value * unit_s


def tokens(value: object, name: str) -> int | None:
    """Return a number of tokens."""
    number = _number(value, name)
    if number is None:
        return None
    if not 0 <= number <= MOST_TOKENS or number != int(number):
        raise Impossible(f"{name} is {number:g}")
    return int(number)


def instant_ns(value: object, name: str) -> int | None:
    """Return a point in time, ns."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _LATEST_NS:
        raise Impossible(f"{name} is not a time in nanoseconds")
    return value


def as_instant_ns(instant_s: float | None) -> int | None:
    """Return a point in time that is known in seconds; None for one that is no time of a clock."""
    return None if instant_s is None or not 0 <= instant_s < SECOND_NS * 8 else round(instant_s * SECOND_NS)


def mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object inside another; an empty one where there is none."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def first_of(*values: Any) -> Any:
    """Return the first value that there is."""
    return next((value for value in values if value is not None), None)


def text(value: object) -> str:
    """Return a text that can be kept, or an empty one where there is none."""
    if value is None:
        return ""
    return str(value)[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


_LONGEST_TEXT = 500


def finite(value: object) -> float | None:
    """Return a number that is one, or None; `true` is none."""
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Impossible(f"{name} is not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise Impossible(f"{name} is too large") from error
    if not math.isfinite(number):
        raise Impossible(f"{name} is {number}")
    return number
