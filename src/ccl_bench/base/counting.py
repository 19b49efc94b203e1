"""Numbers of things, and numbers that name things, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = 6
"""Ranks or steps that are named at most."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 rank`, `8 ranks` and the like, with thousands apart."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def ranks_do(ranks: Sequence[int], one: str, several: str) -> str:
    """Return `Rank 3 comes` or `Ranks 0 and 6 come`, with the verb for one and for several."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]} {one}"
    return f"Ranks {numbers(sorted(ranks))} {several}"


def numbers(found: Sequence[int]) -> str:
    """Return `3`, `3 and 5` or `1, 2, 3 and 4 more`."""
    named = [str(number) for number in found[:_NAMED]]
    last = f"{len(found) - _NAMED} more" if len(found) > _NAMED else named.pop()
    return f"{', '.join(named)} and {last}" if named else last
