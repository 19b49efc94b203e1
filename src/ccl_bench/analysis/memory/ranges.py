"""Ranges of addresses that grow, shrink and join: the segments of a device while its history is replayed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Range = tuple[int, int, bool]
"""Start, end, and whether it can be expanded: such ranges join their neighbours."""


class Ranges:
    """Ranges that do not overlap, in order of their addresses."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, Range] = {}
        for found in ranges:
            self.add(*found)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges by address."""
        return (self._ranges[start] for start in self._starts)

    def at(self, address: int) -> Range | None:
        """Return the range that holds an address."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        found = self._ranges[self._starts[place]]
        return found if address < found[1] else None

    def add(self, start: int, end: int, is_expandable: bool = False) -> None:
        """Add a range in place of what it covers."""
        if end <= start:
            return
        self.remove(start, end)
        if is_expandable:
            start, end = self._joined(start, end)
        self._insert(start, end, is_expandable)

    def remove(self, start: int, end: int) -> None:
        """Take out addresses; a range that they are a part of is cut."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        touched = [self._ranges[s] for s in self._starts[first : bisect_left(self._starts, end)]]
        for low, high, is_expandable in touched:
            if high <= start:
                continue
            self._delete(low)
            if low < start:
                self._insert(low, start, is_expandable)
            if end < high:
                self._insert(end, high, is_expandable)

    def _joined(self, start: int, end: int) -> tuple[int, int]:
        """Take out the expandable ranges right before and after, and return what they make together."""
        before, after = self.at(start - 1), self._ranges.get(end)
        if before and before[2]:
            self._delete(before[0])
            start = before[0]
        if after and after[2]:
            self._delete(after[0])
            end = after[1]
        return start, end

    def _insert(self, start: int, end: int, is_expandable: bool) -> None:
        self._starts.insert(bisect_left(self._starts, start), start)
        self._ranges[start] = (start, end, is_expandable)

    def _delete(self, start: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        del self._ranges[start]


def undone(ranges: Ranges, action: str, address: int, size: int) -> None:
    """Take back what an event did to the segments."""
    end = address + size
    if action in {"segment_alloc", "segment_map"}:
        ranges.remove(address, end)
    elif action in {"segment_free", "segment_unmap"}:
        ranges.add(address, end, action == "segment_unmap")


def done(ranges: Ranges, action: str, address: int, size: int) -> None:
    """Do to the segments what an event did."""
    end = address + size
    if action in {"segment_alloc", "segment_map"}:
        ranges.add(address, end, action == "segment_map")
    elif action in {"segment_free", "segment_unmap"}:
        ranges.remove(address, end)
