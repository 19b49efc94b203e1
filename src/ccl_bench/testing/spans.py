"""Which kinds of work ran in each instant: the time of a window divided by brute force."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    Span = tuple[str, int, int]
    """Kind, start and end, ns; the end is outside."""

NOTHING: frozenset[str] = frozenset()


def cut(spans: Iterable[Span], windows: list[tuple[int, int]]) -> list[list[Span]]:
    """Return the spans that reach into each of `windows`, which are in order and disjoint."""
    ends = [end for _, end in windows]
    inside: list[list[Span]] = [[] for _ in windows]
    for span in spans:
        index = bisect_right(ends, span[1])
        while index < len(windows) and windows[index][0] < span[2]:
            inside[index].append(span)
            index += 1
    return inside


def divided(window: tuple[int, int], spans: Iterable[Span]) -> dict[frozenset[str], int]:
    """Return how long each set of kinds ran at once within `window`, ns; the lengths add up to it.

    The window is cut wherever anything starts or ends, and each piece is looked at by itself.
    """
    first, last = window
    changes: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for kind, start, end in spans:
        start, end = max(start, first), min(end, last)
        if start < end:
            changes[start].append((kind, 1))
            changes[end].append((kind, -1))
    running: dict[str, int] = defaultdict(int)
    lengths: dict[frozenset[str], int] = defaultdict(int)
    at = first
    for instant in [*sorted(changes), last]:
        lengths[frozenset(kind for kind, count in running.items() if count)] += instant - at
        for kind, change in changes.get(instant, ()):
            running[kind] += change
        at = instant
    return dict(lengths)


def time_with(lengths: dict[frozenset[str], int], *kinds: str) -> int:
    """Return how long all of `kinds` ran at once, ns."""
    return sum(length for running, length in lengths.items() if running.issuperset(kinds))


def time_without(lengths: dict[frozenset[str], int], *kinds: str) -> int:
    """Return how long none of `kinds` ran, ns."""
    return sum(length for running, length in lengths.items() if not running.intersection(kinds))
