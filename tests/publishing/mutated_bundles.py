"""Mutations of a valid bundle, one value at a time, as a stranger may send them."""

from __future__ import annotations

import json
from itertools import islice, product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Files = dict[str, bytes]
Place = tuple[str | int, ...]

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "nothing": "",
    "a word": "pretraining",
    "controls": "\0\x1b[31m\u202ea\nb",
    "markup": "<script>{{ 1 }}</script>",
    "a formula": "=1+1",
    "a date that is none": "2026-13-45T99:99:99Z",
    "an address": "javascript:alert(1)",
    "a long text": "9" * 5000,
    "zero": 0,
    "minus one": -1,
    "a half": 0.5,
    "the smallest number": 5e-324,
    "a large number": 1.7e308,
    "the other large number": -1.7e308,
    "a large whole number": 2**63,
    "a huge whole number": 10**30,
    "no items": [],
    "a list": [1, "a", None, [[]]],
    "no keys": {},
    "a mapping": {"a": {"b": []}, "": "x", "0": 1.7e308},
}
"""What takes the place of a value, by its description."""


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every value, of lists only the first and the last item."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*place, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1} if value else ()):
            yield from places(value[index], (*place, index))


def replaced(value: Any, place: Place, new: Any) -> Any:
    """Return a copy in which the value at a place is another."""
    if not place:
        return new
    inner = replaced(value[place[0]], place[1:], new)
    if isinstance(value, dict):
        return {**value, place[0]: inner}
    return [*value[: int(place[0])], inner, *value[int(place[0]) + 1 :]]


def mutations(files: Files, name: str, every: int) -> Iterator[tuple[str, Files]]:
    """Yield what was changed in a file of a bundle, and the files: one in `every` of all changes."""
    original = json.loads(files[name])
    for place, what in islice(product(places(original), VALUES), 0, None, every):
        changed = {**files, name: json.dumps(replaced(original, place, VALUES[what])).encode()}
        yield f"{name}: {'.'.join(map(str, place))} is {what}", changed
