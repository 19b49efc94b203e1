"""JSON files in pieces: runs of whole objects out of their array, and damaged runs repaired.

The file is `{head "key": [ object, object, ... ] tail}`, of which formats say how the array begins and where
one of its objects ends: the text between two of them cannot occur in a JSON string, because its quotes
would be escaped.

Damage is repaired in the text, object by object, and what results is read like any other text. Objects that
no repair makes readable are left out and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.trace.values import json_value, next_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

OBJECT_LIMIT = 64 << 20
"""Bytes without the end of an object after which a file is given up as damaged."""

BETWEEN = b" \t\r\n,"
"""What may stand between two objects."""


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """How the files of a format hold their array."""

    start: re.Pattern[bytes]
    """Its key and its opening bracket."""
    boundary: re.Pattern[bytes]
    """From the `}` of one of its objects up to the next one."""
    item: str
    """What messages call an object, such as `event`."""
    name: re.Pattern[bytes]
    """What is before the name of an object, the name, which may hold bare quotes, and what is behind it."""
    head_limit: int = OBJECT_LIMIT
    """Bytes after which a file without the key has no array."""
    separators: tuple[bytes, ...] = ()
    """Where objects usually end, looked for first; `boundary` has the last word."""
    may_be_bare: bool = False
    """Whether the file may be the array alone."""


@dataclass(slots=True)
class Document:
    """Content of a file besides its array, and the outcome of reading it."""

    head: bytes = b""
    """Everything before the array."""
    tail: bytes = b""
    """Everything after the array; empty if the file ends inside it."""
    size: int = 0
    """Bytes read, after decompression."""
    found_array: bool = False
    """Whether the file has the array at all."""
    broken_off: str = ""
    """Why reading stopped before the end of the file, if it did."""
    is_truncated: bool = False
    """Whether the file ends inside its array."""
    repaired: int = 0
    """Objects read after a repair of their text."""
    lost: int = 0
    """Objects that could not be read."""
    first_damage_at: int = 0
    """Offset of the first repaired or lost object in the decompressed file, bytes."""


class Piece(NamedTuple):
    """A run of objects."""

    offset: int
    """Where it begins in the decompressed file, bytes."""
    text: bytes
    is_last: bool
    """Whether it is the rest of the file: the last objects, maybe cut, and what follows the array."""


def array_pieces(stream: BinaryIO, document: Document, form: ArrayForm) -> Iterator[Piece]:
    """Yield runs of whole objects, and the rest of the file; nothing if the file has no array.

    Fills `document` while it goes. Only one piece is in memory at a time, unless a single
    object is larger than that.
    """
    unfinished = b""
    while not document.found_array:
        if len(unfinished) >= form.head_limit or not (block := next_block(stream, document, len(unfinished))):
            document.head = unfinished
            return
        unfinished += block
        if match := form.start.search(unfinished):
            document.head, document.found_array = unfinished[: match.start()], True
            unfinished = unfinished[match.end() :]
        elif form.may_be_bare and (stripped := unfinished.lstrip()).startswith(b"["):
            document.found_array = True
            unfinished = stripped[1:]
    while block := next_block(stream, document, len(unfinished)):
        buffer = unfinished + block if unfinished else block
        if end := _cut(buffer, form):
            yield Piece(document.size - len(buffer), buffer[:end], is_last=False)
            unfinished = buffer[end:].lstrip(BETWEEN)
        elif len(buffer) > OBJECT_LIMIT:
            document.broken_off = f"no {form.item} ends within {OBJECT_LIMIT >> 20} MB"
            unfinished = b""
        else:
            unfinished = buffer
    yield Piece(document.size - len(unfinished), unfinished, is_last=True)


_CUTS_TRIED = 2
"""Separators looked at from the end of a buffer, which may lie just behind the last of them."""

_LAST_BYTES = 8 << 10
"""Bytes at the end of a buffer in which the last object mostly begins: only without one is more looked at."""


def _cut(buffer: bytes, form: ArrayForm) -> int:
    """Return the position after the `}` of the last object that is surely whole, or 0.

    A writer that uses none of the usual separators must not make every search one of the whole buffer.
    """
    size = _LAST_BYTES
    while True:
        start = max(0, len(buffer) - size)
        for separator in form.separators:
            at = len(buffer)
            for _ in range(_CUTS_TRIED):
                if (at := buffer.rfind(separator, start, at)) < 0:
                    break
                if form.boundary.match(buffer, end := at + separator.index(b"}")):
                    return end + 1
        last = max((match.start() + 1 for match in form.boundary.finditer(buffer, start)), default=0)
        if last or not start:
            return last
        size *= 8


_ENDS_TRIED = 1000
"""Brackets looked at, of which each may cost a scan of the text behind it."""


def array_end(text: bytes, start: int = 0) -> int | None:
    """Return the place, from `start` on, of the bracket that closes the array; None if none does.

    What follows it must be the rest of an object, or nothing. The first such bracket counts: lists in the
    rest of an object end like the array.
    """
    ends: list[int] = []
    end = len(text)
    while (end := text.rfind(b"]", start, end)) >= 0 and len(ends) < _ENDS_TRIED:
        ends.append(end)
    for at in reversed(ends):
        # An array ends behind an object, and a list in one mostly behind something else.
        if text[max(0, at - 99) : at].rstrip()[-1:] not in {b"", b"}", b","}:
            continue
        tail = text[at + 1 :].strip()
        if not tail or (tail[:1] in {b",", b"}"} and json_value(b"{" + tail.lstrip(BETWEEN)) is not None):
            return at
    return None


STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
"""A JSON string, which the end of the text may cut."""

_TEXT = re.compile(STRING, re.DOTALL)


def open_brackets(text: bytes) -> int:
    """Return the number of brackets outside strings that `text` opens and does not close."""
    bare = _TEXT.sub(b"", text)
    return bare.count(b"[") + bare.count(b"{") - bare.count(b"]") - bare.count(b"}")


_CONTROL = re.compile(rb"[\x00-\x1f]")
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rb'\\(?:(["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|' + _PAIR + rb")|(u[dD][89a-fA-F][0-9a-fA-F]{2}))?"
)
_NO_VALUE = re.compile(
    b"(" + STRING + rb")|(?<=[:\[,])\s*+[+-]?(?:nan|inf(?:inity)?)\b|(?<=:)\s*+(?=[,}])",
    re.IGNORECASE | re.DOTALL,
)
_STRAY_QUOTE = re.compile(rb'(?<!\\)"')


def repaired_text(text: bytes) -> bytes:
    """Return `text` with the damage repaired whose repair is beyond doubt.

    That is bytes that are no UTF-8, control characters in strings, stray backslashes, halves of surrogate
    pairs, and numbers that JSON does not have.
    """
    text = _CONTROL.sub(b" ", text.decode("utf-8", "replace").encode())
    text = _ESCAPE.sub(lambda m: m[0] if m[1] else rb"\ufffd" if m[2] else rb"\\", text)
    return _NO_VALUE.sub(lambda m: m[1] or b" null", text)


_PARTS_OF_AN_OBJECT = 64
"""Into how many parts an object may have been cut by objects in it that look like those of the array."""

_UNFINISHED_BYTES = 4 << 20
"""Longer objects, of which a damaged one seems to be the beginning, are not waited for."""


def repaired_piece(
    piece: Piece,
    document: Document,
    form: ArrayForm,
    readable: Callable[[bytes], bytes | None],
    *,
    may_go_on: bool = False,
    is_cut: bool = False,
) -> tuple[bytes, Piece | None]:
    """Return the objects of a damaged piece as text that is readable, and what the next piece goes on with.

    `readable` returns objects as they are read, None if they cannot be. Only if `may_go_on`, the last
    object is left as it stands where its end may be in the next piece. If it `is_cut` by the end of the
    file, it does not count as lost.
    """
    whole = piece.text
    cuts = [0, *(match.start() + 1 for match in form.boundary.finditer(whole)), len(whole)]
    depths: list[int] = []
    parts: list[bytes] = []
    place = 0
    while place < len(cuts) - 1:
        start = cuts[place]
        part = whole[start : cuts[place + 1]].strip(BETWEEN)
        text = readable(part)
        place += 1
        if text is None:
            # An object may have been cut where one in it begins: its parts together close all that they open.
            depths = depths or [open_brackets(whole[begin:end]) for begin, end in pairwise(cuts)]
            open_after = [*accumulate(depths[place - 1 : place - 1 + _PARTS_OF_AN_OBJECT])]
            following = next((n for n, depth in enumerate(open_after) if depth <= 0), None)
            if following and open_after[following] == 0:
                text = readable(whole[start : cuts[place + following]].strip(BETWEEN))
                place += following if text is not None else 0
            is_open = following is None and len(open_after) < _PARTS_OF_AN_OBJECT
            if is_open and may_go_on and len(whole) - start < _UNFINISHED_BYTES:
                unfinished = whole[start:].lstrip(BETWEEN)
                return b",".join(parts), Piece(piece.offset + start, unfinished, is_last=False)
        if text is None:
            text = readable(repaired_text(part))
            if text is None:  # more is guessed only where nothing else helps
                escaped = form.name.sub(lambda m: m[1] + _STRAY_QUOTE.sub(rb"\"", m[2]) + m[3], part)
                text = readable(repaired_text(escaped))
            is_last_cut = is_cut and place == len(cuts) - 1 and text is None
            if not (document.repaired or document.lost or is_last_cut):
                document.first_damage_at = piece.offset + start
            document.repaired += text is not None
            document.lost += text is None and not is_last_cut
        if text:
            parts.append(text)
    return b",".join(parts), None


def damage(document: Document, form: ArrayForm, file: str) -> Iterator[Finding]:
    """Yield what was found wrong with the text of a file, which `file` names."""
    item, items = form.item, f"{form.item}s"
    place = f"first at byte {document.first_damage_at:,}"
    if document.broken_off:
        message = f"reading stopped after {document.size:,} bytes: {document.broken_off}"
        yield Finding("file-broken-off", "error", message, file)
    elif document.is_truncated:
        message = f"the file ends among its {items}, after {document.size:,} bytes"
        yield Finding("file-truncated", "error", message, file)
    if document.lost:
        message = f"{counted(document.lost, f'{item} is', f'{items} are')} unreadable, {place}"
        yield Finding("events-lost", "error", message, file, count=document.lost)
    if form.start.search(document.tail):
        message = "another trace follows the first in the file, and is not read"
        yield Finding("events-lost", "error", message, file)
    if document.repaired:
        subject = counted(document.repaired, f"{item} was", f"{items} were")
        message = f"{subject} read after a repair of the text, {place}"
        yield Finding("events-repaired", "note", message, file, count=document.repaired)
