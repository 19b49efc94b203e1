"""The catalog's data files: their rows, and regular expressions for names of kernels in them.

Kernel names of templates have thousands of characters, and an expression of many alternatives tries each of
them at each character. Looking for a word takes a thousandth of that: an expression is tried only where a
word is found that every match holds. It is compiled at its first try, which some never have.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from functools import cache
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any


@cache
def load_data(name: str) -> dict[str, Any]:
    """Return the parsed data file `<name>.toml`."""
    raw = pkgutil.get_data(__package__, f"{name}.toml")
    if raw is None:
        raise FileNotFoundError(f"{name}.toml is missing from {__package__}")
    return tomllib.loads(raw.decode("utf-8"))


_SHORTEST = 3
"""Letters of a word that is looked for at least: shorter ones are in most names."""

_COMMON = "kernel"
"""A word that most names hold, in part or as a whole."""


class NamePattern:
    """A regular expression and the words of which every match holds one."""

    __slots__ = ("_expression", "_words")

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._words = needed_words(expression)

    def is_in(self, name: str) -> bool:
        """Whether the expression matches anywhere in a name."""
        if self._words and name.isascii():
            lowered = name.lower()
            if not any(word in lowered for word in self._words):
                return False
        return _compiled(self._expression).search(name) is not None


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def needed_words(expression: str) -> frozenset[str]:
    """Return words in small letters of which each match of ASCII holds one; none if there are no such."""
    return _of_sequence(_parser.parse(expression)) or frozenset()


def _of_sequence(parsed: Any) -> frozenset[str] | None:
    """Return the words that are hardest to find of a sequence of parts, all of which must match."""
    candidates: list[frozenset[str]] = []
    run = ""
    for kind, value in parsed:
        if kind is _constants.LITERAL:
            run += chr(value).lower()
            continue
        candidates.append(frozenset({run}))
        run = ""
        words = _of_part(kind, value)
        candidates += [words] if words else []
    candidates.append(frozenset({run}))
    best = max(candidates, key=_rarity)
    return best if _rarity(best) >= _SHORTEST else None


def _rarity(words: frozenset[str]) -> int:
    """Return the rarity of the commonest of some words."""
    return min(0 if word in _COMMON else len(word) for word in words)


def _of_part(kind: Any, value: Any) -> frozenset[str] | None:
    if kind is _constants.SUBPATTERN:
        return _of_sequence(value[-1])
    if kind is _constants.ATOMIC_GROUP:
        return _of_sequence(value)
    if kind is _constants.BRANCH:
        branches = [_of_sequence(branch) or frozenset() for branch in value[1]]
        return frozenset().union(*branches) if all(branches) else None
    if kind is _constants.MAX_REPEAT and value[0] > 0:
        return _of_sequence(value[-1])
    return None
