"""Texts for which a pattern could take time with the square of their length, derived from the pattern."""

from __future__ import annotations

from re import _constants, _parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
_CATEGORIES = {
    _constants.CATEGORY_WORD: "a",
    _constants.CATEGORY_DIGIT: "1",
    _constants.CATEGORY_NOT_DIGIT: "a",
    _constants.CATEGORY_NOT_SPACE: "a",
}


def repeated(expression: str, length: int) -> set[str]:
    """Return texts that repeat what leads to a repeat without bound, and what is repeated, in a pattern.

    A pattern that begins anew at each such piece, and then looks for the rest of its match up to the end of
    the text, takes time with the square of the length. None of the texts for a pattern without such a repeat.
    """
    return {
        before + (piece + between) * (length // len(piece + between))
        for before, piece in _pieces(_parser.parse(expression))
        if piece
        for between in ("", "_", " ")
    }


def _pieces(parsed: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield texts from the beginning of a sequence to a repeat in it, and a piece that may follow again."""
    whole, since = [""], [""]
    for kind, value in parsed:
        texts = _examples([(kind, value)])
        inner = {_constants.SUBPATTERN: value, _constants.ATOMIC_GROUP: (value,)}.get(kind, ())[-1:]
        inner = value[1] if kind is _constants.BRANCH else value[-1:] if kind in _REPEATS else inner
        for part in inner:
            for before, piece in _pieces(part):
                yield whole[0] + before, piece
                yield "", since[0] + piece
        if kind in _REPEATS and value[1] is _constants.MAXREPEAT:
            body = _examples(value[-1])
            yield from ((before, piece) for before in whole for piece in (before, *body))
            yield from ((whole[0], piece) for piece in since)
            yield from (("", since[0] + piece) for piece in body)
            since = [""]
        else:
            since = _joined(since, texts)
        whole = _joined(whole, texts)


def _examples(parsed: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return short texts that a sequence matches: one for each alternative, with the first of the others."""
    texts = [""]
    for kind, value in parsed:
        texts = _joined(texts, _of_part(kind, value))
    return texts


def _joined(texts: list[str], more: list[str]) -> list[str]:
    return [texts[0] + each for each in more] + [each + more[0] for each in texts[1:]]


def _of_part(kind: Any, value: Any) -> list[str]:
    if kind is _constants.LITERAL:
        return [chr(value)]
    if kind is _constants.RANGE:
        return [chr(value[0])]
    if kind is _constants.CATEGORY:
        return [_CATEGORIES.get(value, " ")]
    if kind is _constants.IN:
        return [_of_part(*each)[0] for each in value[:2]] if value[0][0] is not _constants.NEGATE else [" "]
    if kind is _constants.SUBPATTERN:
        return _examples(value[-1])
    if kind is _constants.ATOMIC_GROUP:
        return _examples(value)
    if kind is _constants.BRANCH:
        return [each for branch in value[1] for each in _examples(branch)]
    if kind in _REPEATS:
        return [each * value[0] for each in _examples(value[-1])] if value[0] else [""]
    return {_constants.ANY: ["a"], _constants.NOT_LITERAL: [" "]}.get(kind, [""])
