"""Text for output: counts in words, JSON that every parser reads, CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

T = TypeVar("T")

_NAMED = 6
"""Ranks or steps that are named at most."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 rank`, `8 ranks` and the like, with thousands apart."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def devices_named(count: int, name: str) -> str:
    """Return `8 x NVIDIA A100`, or `8 devices of unknown name` for an empty name."""
    return f"{count:,} x {name}" if name else f"{counted(count, 'device')} of unknown name"


def ranks_do(ranks: Sequence[int], singular: str, plural: str) -> str:
    """Return `Rank 3 comes` or `Ranks 0 and 6 come`, with the verb for one and for several."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]} {singular}"
    return f"Ranks {numbers(sorted(ranks))} {plural}"


def numbers(integers: Sequence[int]) -> str:
    """Return `3`, `3 and 5` or `1, 2, 3 and 4 more`."""
    texts = [str(number) for number in integers[:_NAMED]]
    last = f"{len(integers) - _NAMED} more" if len(integers) > _NAMED else texts.pop()
    return f"{', '.join(texts)} and {last}" if texts else last


INERT_PATTERN = r"""(^[\s\ufeff]*|[;|\t\r\n"]\s*)([=+\-@\t\r\uff1d\uff0b\uff0d\uff20])"""
"""Where a spreadsheet may find a formula, in the regular expressions of Python, Rust and JavaScript alike.

Characters that begin one (OWASP, CSV injection), at the beginning of a cell or of what becomes one where a
spreadsheet divides by `;`, `|`, tabs or quotes. A comma is no such place, for text with one is quoted.
"""
INERT = "${1}'${2}"
"""What replaces it, as Rust writes it: behind `'` it is text."""
_FORMULA = re.compile(INERT_PATTERN)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def inert(value: object) -> object:
    """Return a value in which no spreadsheet finds a formula; numbers, also as text, stay as they are."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return _FORMULA.sub(r"\1'\2", value)


def csv_lines(rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield rows as lines of CSV."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in rows:
        writer.writerow([inert(cell) for cell in row])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


@overload
def json_decoder(type_: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(type_: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]: ...
def json_decoder(type_: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type; call it while a module is imported, not where the decoder is used.

    msgspec 0.22 crashes where two threads are the first to need a type.
    """
    return msgspec.json.Decoder(type_, strict=strict)


def encode_json(value: object) -> bytes:
    """Return a value as indented JSON; bytes of file names that are not UTF-8 are escaped as `\\udcff`."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_escaped(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=2)


def escape_undecodable(text: str) -> str:
    """Return text that can be written as UTF-8: bytes of file names that are not UTF-8 become `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return escape_undecodable(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value
