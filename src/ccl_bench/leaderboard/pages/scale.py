"""Places in a drawing: round numbers along an axis, and versions in their order."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TICKS = 5
_DIGITS = 18
"""Digits of a number in a version that are looked at."""
_LONGEST = 14
_LETTER = 7.0
"""Width of a letter in a label, in pixels."""

Place = tuple[str, str]
"""A name and a version of it."""


@dataclass(frozen=True, slots=True)
class Area:
    """A drawing and the part of it that the axes enclose, in pixels from the top left."""

    width: int = 860
    height: int = 340
    left: int = 76
    right: int = 836
    top: int = 16
    bottom: int = 288

    def across(self, place: int, places: int) -> float:
        """Return the middle of one of several equal places along the axis."""
        return round(self.left + (place + 0.5) * (self.right - self.left) / places, 1)

    def up(self, value: float, ticks: Sequence[float]) -> float:
        """Return the height of a value between the first and the last tick."""
        share = (value - ticks[0]) / (ticks[-1] - ticks[0])
        return round(self.bottom - share * (self.bottom - self.top), 1)


def version_labels(places: Sequence[Place], area: Area) -> Iterator[tuple[float, str]]:
    """Yield where the versions stand along the axis, as many as have room beside each other."""
    texts = [_shortened(version) for _, version in places]
    room = (area.right - area.left) / len(places)
    every = math.ceil(_LETTER * (max(map(len, texts)) + 1) / room)
    for nth in range(0, len(places), every):
        yield area.across(nth, len(places)), texts[nth]


def name_labels(places: Sequence[Place], area: Area) -> Iterator[tuple[float, str]]:
    """Yield each name once, with the middle of its versions along the axis."""
    for name, its in groupby(enumerate(places), key=lambda each: each[1][0]):
        nths = [nth for nth, _ in its]
        if name:
            ends = (area.across(nth, len(places)) for nth in (nths[0], nths[-1]))
            yield sum(ends) / 2, _shortened(name)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def round_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from below `low` to above `high`, from 0 where that is not far below."""
    if 0 <= low < high / 2:
        low = 0.0
    rough = ((high - low) or abs(high) or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{step * place:.12g}") for place in range(first, max(last, first + 1) + 1)]


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts version 2.9 before 2.10."""
    return tuple(
        (1, int(part[:_DIGITS]), "") if part.isdecimal() and part.isascii() else (0, 0, part)
        for part in re.split(r"([0-9]+)", text)
    )
