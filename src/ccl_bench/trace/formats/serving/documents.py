"""JSON as serving benchmarks write it: one value, one on each line, with `NaN` and `Infinity`.

Everything that cannot be understood is an error that says where.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.storage import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

LARGEST_BYTES = 4 << 30
_BLOCK_BYTES = 1 << 20
_COPY_AGAIN = "copy the file again, or repeat the benchmark"


def whole(stream: BinaryIO, file: str) -> tuple[bytes, str]:
    """Return what can be read of a stream, and what kept the rest from being read."""
    found = bytearray()
    try:
        while block := stream.read(_BLOCK_BYTES):
            found += block
            if len(found) > LARGEST_BYTES:
                raise InputError(f"is larger than {LARGEST_BYTES >> 30} GiB", where=file)
    except DAMAGED as error:
        return bytes(found), str(error) or type(error).__name__
    return bytes(found), ""


def lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each line that is not blank."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def parsed(raw: bytes) -> Any:
    """Return the value that is `raw`; ValueError where it is none."""
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def objects(stream: BinaryIO, file: str) -> list[dict[str, Any]]:
    """Return the object that a file is, those of its list or those on its lines; InputError for all else."""
    raw, damage = whole(stream, file)
    value = None if _holds_several(raw) else one_value(raw, damage, file)
    found = _by_line(raw, file) if value is None else value if isinstance(value, list) else [value]
    for number, value in enumerate(found):
        if not isinstance(value, dict):
            raise InputError(f"result {number} is no object", where=file, fix=_COPY_AGAIN)
    return found


def one_value(raw: bytes, damage: str, file: str) -> Any:
    """Return the one value that a file is."""
    try:
        return parsed(raw)
    except ValueError as error:
        what = f"cannot be read to its end: {damage}" if damage else f"is no whole JSON: {error}"
        raise InputError(what, where=file, fix=_COPY_AGAIN) from error


def _holds_several(raw: bytes) -> bool:
    """Whether there is a line that is a value, and another after it."""
    first = [line for _, line in islice(lines(raw), 2)]
    try:
        return len(first) > 1 and isinstance(parsed(first[0]), dict)
    except ValueError:
        return False


def _by_line(raw: bytes, file: str) -> list[Any]:
    found = []
    for number, line in lines(raw):
        try:
            found.append(parsed(line))
        except ValueError as error:
            raise InputError(
                f"line {number} is no whole JSON: {error}", where=file, fix=_COPY_AGAIN
            ) from error
    return found
