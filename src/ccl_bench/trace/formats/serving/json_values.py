"""JSON as serving benchmarks write it, one value or one on each line, and the numbers in it.

Everything that cannot be understood is an error that says where. Text that is no JSON and yet written is
repaired, and then read as all other.
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

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import json_decoder
from ccl_bench.base.units import SECOND_NS
from ccl_bench.storage import DAMAGED, decode_text
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from msgspec.json import Decoder

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Value = TypeVar("Value")
    Number = TypeVar("Number", float, Floats)

_BLOCK_BYTES = 1 << 20
_COPY_AGAIN = "copy the file again, or repeat the benchmark"

_NOT_BLANK = re.compile(rb"\S")


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


def decoded(raw: bytearray | Raw, decoder: Decoder[Value]) -> Value:
    """Return the value that is `raw`, which was counted as held.

    Raises msgspec.ValidationError if it is of another type, ValueError if it is no value at all.
    """
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return repaired(raw, decoder)


def repaired(raw: bytearray | Raw, decoder: Decoder[Value]) -> Value:
    """Return the same of a text with NaN, lone surrogates or damaged UTF-8, which Python's parser takes."""
    try:
        value = json.loads(decode_text(bytes(raw)))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return msgspec.convert(value, decoder.type)


_ANYTHING: Decoder[Any] = msgspec.json.Decoder()
_OBJECTS: Decoder[Any] = json_decoder(dict[str, Raw] | list[dict[str, Raw]])


class Fields(Mapping[str, Any]):
    """An object of a file, whose values are decoded when they are asked for: most lists are not."""

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self._values = values
        self._file = file

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, Raw):
            return value
        with _whole(self._file):
            return decoded(value, _ANYTHING)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, key: str) -> Raw | None:
        """Return a value as it stands in the file; None if there is none, or if it was repaired."""
        value = self._values.get(key)
        return value if isinstance(value, Raw) else None


_NO_RATE = b'"request_rate"'
_INFINITE = re.compile(rb":\s*+-?(Infinity)")


def _objects(raw: bytearray, file: str) -> list[Any]:
    """Return the objects that are `raw` as Fields, one or those of a list, and what stands in their place."""
    memory.hold_json(raw)
    # A rate without a limit is no JSON, and in most files. What replaces it is as long and of the same value.
    # The key with its quotes stands nowhere else: in a text they are escaped.
    at = raw.find(_NO_RATE)
    while at >= 0:
        at += len(_NO_RATE)
        if match := _INFINITE.match(raw, at):
            raw[slice(*match.span(1))] = b"1e999   "
        at = raw.find(_NO_RATE, at)
    try:
        value = _OBJECTS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = decoded(raw, _ANYTHING)
    values = value if isinstance(value, list) else [value]
    return [Fields(item, file) if isinstance(item, dict) else item for item in values]


def read_objects(stream: BinaryIO, file: str) -> list[Fields]:
    """Return the object that a file is, those of its list or those on its lines; InputError for all else."""
    raw, damage = read_whole(stream)
    values: list[Any] = []
    if _holds_several(raw, file):
        for number, line in lines(raw):
            try:
                values += _objects(line, file)
            except ValueError as error:
                message = f"line {number} is not complete JSON: {error}"
                raise InputError(message, where=file, fix=_COPY_AGAIN) from error
    else:
        with _whole(file, damage):
            values = _objects(raw, file)
    for number, value in enumerate(values):
        if not isinstance(value, Fields):
            raise InputError(f"result {number} is not an object", where=file, fix=_COPY_AGAIN)
    return values


def one_value(raw: bytearray, damage: str, file: str) -> Any:
    """Return the one value that a file is, which was counted as held."""
    with _whole(file, damage):
        return decoded(raw, _ANYTHING)


@contextlib.contextmanager
def _whole(file: str, damage: str = "") -> Iterator[None]:
    """Turn an error of the parser in the block into one that names the file."""
    try:
        yield
    except ValueError as error:
        message = f"cannot be read to its end: {damage}" if damage else f"is no whole JSON: {error}"
        raise InputError(message, where=file, fix=_COPY_AGAIN) from error


def _holds_several(raw: bytearray, file: str) -> bool:
    """Whether there is a line that is an object, and another after it."""
    begin = _NOT_BLANK.search(raw)
    end = raw.find(b"\n", begin.start()) if begin else -1
    if not begin or end < 0 or not _NOT_BLANK.search(raw, end):
        return False
    try:
        first = _objects(raw[raw.rfind(b"\n", 0, begin.start()) + 1 : end], file)
    except ValueError:
        return False
    return len(first) == 1 and isinstance(first[0], Fields)


LONGEST_S = 10 * 86_400.0
"""Seconds above which a time is damage and not a slow server."""

MOST_TOKENS = 10**9
_LATEST_NS = 1 << 62


class Impossible(ValueError):  # noqa: N818 (what a value is, not what the program did)
    """A value that no request has, with its name."""


def seconds(value: object, name: str, unit_s: float = 1.0) -> float | None:
    """Return a time in seconds; `unit_s` is the length of the unit it is recorded in."""
    if value is None:
        return None
    number = _number(value, name)
    time_s = in_seconds(number, unit_s)
    if not 0 <= time_s <= LONGEST_S:
        raise Impossible(f"{name} is {number:g}")
    return time_s


_PLAIN = frozenset({int, float})


def times(values: object, name: str, unit_s: float = 1.0) -> Floats | list[float]:
    """Return a list of times in seconds, without absent ones."""
    if not isinstance(values, list):
        raise Impossible(f"{name} is not a list")
    # All at once: one by one takes ten times as long, and is only needed to find the one that is no time.
    if _PLAIN.issuperset(map(type, values)):
        with contextlib.suppress(OverflowError):
            times_s = in_seconds(np.array(values, np.float64), unit_s)
            if are_times(times_s):
                return times_s
    return [time_s for value in values if (time_s := seconds(value, name, unit_s)) is not None]


def are_times(times_s: Floats) -> bool:
    """Whether each number is a time that `seconds` returns."""
    return not times_s.size or bool(times_s.min() >= 0 and times_s.max() <= LONGEST_S)


def in_seconds(value: Number, unit_s: float) -> Number:
    """Return times in seconds; dividing by 1000 keeps a digit that multiplying with 0.001 loses."""
    return value / round(1 / unit_s) if unit_s < 1 else value * unit_s


def tokens(value: object, name: str) -> int | None:
    """Return a number of tokens."""
    if value is None:
        return None
    number = _number(value, name)
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


_LONGEST_TEXT = 500


def text(value: object) -> str:
    """Return a text that can be kept, or an empty one where there is none."""
    if value is None:
        return ""
    return str(value)[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def finite(value: object) -> float | None:
    """Return a number that is one, or None; `true` is none."""
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _number(value: object, name: str) -> float:
    """Return a number, which may be infinite or NaN."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Impossible(f"{name} is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise Impossible(f"{name} is too large") from error
