"""The caching allocator: the block size it gives for a request, and its segments as ranges of addresses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SMALLEST = 512
"""Sizes are multiples of it, bytes."""

SMALL_POOL = 1 << 20
"""Largest block of the pool for small blocks; in the other one, what is left by a split is larger."""

_LAST_INTERVAL = 15
"""Number of the last interval between powers of two, from 1 MiB, that a setting of its own may divide."""

_DIVISIONS = "roundup_power2_divisions."


@dataclass(frozen=True, slots=True)
class Rounding:
    """The settings that decide on sizes."""

    divisions: Mapping[int, int] = field(default_factory=dict)
    """Size in MiB, a power of two → parts that the space up to the next power of two is divided into."""
    max_split: int | None = None
    """Blocks of this size and above are not split; None for no limit."""

    def rounded(self, requested_bytes: int) -> int:
        """Return the least size of the block for so many bytes."""
        if requested_bytes < SMALLEST:
            return SMALLEST
        interval = min(max(requested_bytes.bit_length() - 21, 0), _LAST_INTERVAL)
        divisions = self.divisions.get(1 << interval, 0)
        step = SMALLEST
        if divisions > 1 and requested_bytes > SMALLEST * divisions:
            floor = 1 << (requested_bytes.bit_length() - 1)
            step = floor >> (divisions.bit_length() - 1) or floor
        return -(-requested_bytes // step) * step

    def block(self, rounded: int, free: int) -> int:
        """Return the size of the block that is made of a free one in a segment of fixed size."""
        left = free - rounded
        if rounded <= SMALL_POOL:
            return rounded if left >= SMALLEST else free
        is_split = left > SMALL_POOL and (self.max_split is None or rounded < self.max_split)
        return rounded if is_split else free


def rounding(settings: Mapping[str, int]) -> Rounding:
    """Return the rules under these settings of the allocator."""
    divisions = {
        int(name.removeprefix(_DIVISIONS)): value
        for name, value in settings.items()
        if name.startswith(_DIVISIONS) and name.removeprefix(_DIVISIONS).isdecimal()
    }
    limit = settings.get("max_split_size", -1)
    return Rounding(divisions, limit if limit > 0 else None)


Range = tuple[int, int, bool]
"""Start, end, and whether it can be expanded: such ranges join their neighbours."""


class Ranges:
    """Ranges that do not overlap, in order of their addresses."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, Range] = {}
        for span in ranges:
            self.add(*span)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges by address."""
        return (self._ranges[start] for start in self._starts)

    def at(self, address: int) -> Range | None:
        """Return the range that holds an address."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        span = self._ranges[self._starts[place]]
        return span if address < span[1] else None

    def add(self, start: int, end: int, is_expandable: bool = False) -> None:
        """Add a range in place of the ranges that it covers."""
        if end <= start:
            return
        self.remove(start, end)
        before, after = self.at(start - 1), self._ranges.get(end)
        if is_expandable and before and before[2]:
            self._delete(before[0])
            start = before[0]
        if is_expandable and after and after[2]:
            self._delete(after[0])
            end = after[1]
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

    def _insert(self, start: int, end: int, is_expandable: bool) -> None:
        self._starts.insert(bisect_left(self._starts, start), start)
        self._ranges[start] = (start, end, is_expandable)

    def _delete(self, start: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        del self._ranges[start]


def revert_segment_event(ranges: Ranges, action: str, address: int, size: int) -> None:
    """Undo an event in the segments."""
    end = address + size
    if action in {"segment_alloc", "segment_map"}:
        ranges.remove(address, end)
    elif action in {"segment_free", "segment_unmap"}:
        ranges.add(address, end, action == "segment_unmap")


def apply_segment_event(ranges: Ranges, action: str, address: int, size: int) -> None:
    """Apply an event to the segments."""
    end = address + size
    if action in {"segment_alloc", "segment_map"}:
        ranges.add(address, end, action == "segment_map")
    elif action in {"segment_free", "segment_unmap"}:
        ranges.remove(address, end)
