"""JSON as serving benchmarks write it, one value or one on each line, and the numbers in it.

Everything that cannot be understood is an error that says where.
"""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.storage import DAMAGED, decode_text
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_BLOCK_BYTES = 1 << 20
_COPY_AGAIN = "copy the file again, or repeat the benchmark"


def read_whole(stream: BinaryIO) -> tuple[bytes, str]:
    """Return what can be read of a stream, and what kept the rest from being read."""
    found = bytearray()
    try:
        while block := stream.read(_BLOCK_BYTES):
            found += block
    except DAMAGED as error:
        return bytes(found), str(error) or type(error).__name__
    return bytes(found), ""


def lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each line that is not blank."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def parse_json(raw: bytes) -> Any:
    """Return the value that is `raw`; ValueError where it is none."""
    memory.hold_json(raw)
    try:
        return json.loads(decode_text(raw))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_objects(stream: BinaryIO, file: str) -> list[dict[str, Any]]:
    """Return the object that a file is, those of its list or those on its lines; InputError for all else."""
    raw, damage = read_whole(stream)
    value = None if _holds_several(raw) else one_value(raw, damage, file)
    found = _by_line(raw, file) if value is None else value if isinstance(value, list) else [value]
    for number, value in enumerate(found):
        if not isinstance(value, dict):
            raise InputError(f"result {number} is not an object", where=file, fix=_COPY_AGAIN)
    return found


def one_value(raw: bytes, damage: str, file: str) -> Any:
    """Return the one value that a file is."""
    try:
        return parse_json(raw)
    except ValueError as error:
        what = f"cannot be read to its end: {damage}" if damage else f"is no whole JSON: {error}"
        raise InputError(what, where=file, fix=_COPY_AGAIN) from error


def _holds_several(raw: bytes) -> bool:
    """Whether there is a line that is a value, and another after it."""
    first = [line for _, line in islice(lines(raw), 2)]
    try:
        return len(first) > 1 and isinstance(parse_json(first[0]), dict)
    except ValueError:
        return False


def _by_line(raw: bytes, file: str) -> list[Any]:
    found = []
    for number, line in lines(raw):
        try:
            found.append(parse_json(line))
        except ValueError as error:
            raise InputError(
                f"line {number} is not complete JSON: {error}", where=file, fix=_COPY_AGAIN
            ) from error
    return found


LONGEST_S = 10 * 86_400.0
"""Seconds above which a time is damage and not a slow server."""

MOST_TOKENS = 10**9
_LATEST_NS = 1 << 62


class Impossible(ValueError):  # noqa: N818 (what a value is, not what the program did)
    """A value that no request has, with its name."""


def seconds(value: object, name: str, unit_s: float = 1.0) -> float | None:
    """Return a time in seconds; `unit_s` is the length of the unit it is recorded in."""
    found = _number(value, name)
    if found is None:
        return None
    scaled = in_seconds(found, unit_s)
    if not 0 <= scaled <= LONGEST_S:
        raise Impossible(f"{name} is {found:g}")
    return scaled


def in_seconds(value: float, unit_s: float) -> float:
    """Return a time in seconds; dividing by 1000 keeps a digit that multiplying with 0.001 loses."""
    return value / round(1 / unit_s) if unit_s < 1 else value * unit_s


def tokens(value: object, name: str) -> int | None:
    """Return a number of tokens."""
    found = _number(value, name)
    if found is None:
        return None
    if not 0 <= found <= MOST_TOKENS or found != int(found):
        raise Impossible(f"{name} is {found:g}")
    return int(found)


def instant_ns(value: object, name: str) -> int | None:
    """Return a point in time, ns."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _LATEST_NS:
        raise Impossible(f"{name} is not a time in nanoseconds")
    return value


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
        found = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Impossible(f"{name} is not a number")
    try:
        found = float(value)
    except OverflowError as error:
        raise Impossible(f"{name} is too large") from error
    if not math.isfinite(found):
        raise Impossible(f"{name} is {found}")
    return found
