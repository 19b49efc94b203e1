"""Text for output: counts in words, and untrusted text that only shows: on lines, in JSON, in CSV."""

from __future__ import annotations

import csv
import io
import json
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


_IGNORED = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
"""Characters that take no room or turn the text around them: Default_Ignorable_Code_Point of Unicode 16.

Those that also shape the text of a language are in `_JOINERS` and `_SELECTORS`.
"""
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb\ud800-\udfff"
"""Control characters except tab and line feed, separators of lines, annotations, and halves of characters."""
_JOINERS = "\u200c\u200d"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f"
_VARIANTS = "\U000e0100-\U000e01ef"
_IDEOGRAPHS = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSHAPED = f"\\x00-\\x7f{_CONTROLS}{_IGNORED}{_JOINERS}{_VARIANTS}"
ACTING = re.compile(
    f"[{_CONTROLS}{_IGNORED}{_JOINERS}{_SELECTORS}{_VARIANTS}]"
    f"(?<![^{_UNSHAPED}][{_JOINERS}])(?<![^{_UNSHAPED}{_SELECTORS}][{_SELECTORS}])"
    f"(?<![0-9#*]\ufe0f)(?<![{_IDEOGRAPHS}][{_VARIANTS}])"
)
"""Characters of untrusted text that act rather than show.

One joiner or selector stays behind a character that it can shape: Persian, Indic scripts, ideographs and
emoji need them. In a row, or behind ASCII except the keys of emoji, they are invisible text.
"""


def harmless(text: object) -> str:
    """Return untrusted text for people, on a terminal or a page: each character that acts becomes `?`.

    Lines and tabs stay. Every text that leaves passes here, in `plain`, or as escapes in `encode_json`.
    """
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    return ACTING.sub("?", whole.replace("\r\n", "\n"))


def plain(text: object) -> str:
    """Return untrusted text for people as `harmless` does, on one line."""
    return harmless(text).replace("\n", " ").replace("\t", " ")


def shown_json(value: object, **options: Any) -> str:
    """Return JSON whose texts a script puts on a page: each character that acts is `?`, also once decoded."""
    encoded = json.dumps(value, ensure_ascii=False, **options)
    return harmless(_ESCAPE.sub(lambda match: "?" if match[1] else match[0], encoded))


_ESCAPE = re.compile(r"\\(?:(u00[01][0-9a-f]|[bfr])|.)")


_BEFORE_FORMULA = r"""(^[\s\ufeff]*|[;|"]\s*|{start}[^\S\t\r\n]*[\t\r\n]\s*)"""
_FORMULA_START = r"""([=+\-@\t\r\uff1d\uff0b\uff0d\uff20])"""
INERT_PATTERN = _BEFORE_FORMULA.format(start="") + _FORMULA_START
"""Where a spreadsheet may find a formula, for the regular expressions of Rust.

Characters that begin one (OWASP, CSV injection), at the beginning of a cell or of what becomes one where a
spreadsheet divides by `;`, `|`, tabs or quotes. A comma is no such place, for text with one is quoted.
"""
INERT_PATTERN_ONCE = _BEFORE_FORMULA.format(start=r"(?<!\s)") + _FORMULA_START
"""The same for Python and JavaScript, which would begin anew at each of many ends of lines, and take time
with the square of their number: here they begin at the first white space alone. Rust's are always linear.
"""
INERT = "${1}'${2}"
"""What replaces it, as Rust writes it: behind `'` it is text."""
_FORMULA = re.compile(INERT_PATTERN_ONCE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def inert(value: object) -> object:
    """Return a harmless value in which no spreadsheet finds a formula; numbers, also as text, stay."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return _FORMULA.sub(r"\1'\2", harmless(value))


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


def encode_json(value: object, *, indent: int = 2) -> bytes:
    """Return a value as JSON that is safe to print: characters that act are escapes, so nothing is lost.

    `indent` is that of `msgspec.json.format`. Bytes of file names that are not UTF-8 become `\\udcff`.
    """
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_decodable(msgspec.to_builtins(value)))
    return escape_json(msgspec.json.format(encoded, indent=indent))


def escape_json(encoded: bytes) -> bytes:
    """Return JSON with the same content, in which characters that act are escapes."""
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return ACTING.sub(_as_escape, encoded.decode()).encode()


def _as_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1].replace("\x7f", "\\u007f")


def _decodable(value: object) -> object:
    """Return data without halves of characters, which no parser must accept."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_decodable(key): _decodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_decodable(item) for item in value]
    return value
