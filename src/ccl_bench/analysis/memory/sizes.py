"""How large blocks were that are gone at the snapshot: a history tells what was asked for alone.

A block for more than 1 MiB may be larger than asked for by up to 1 MiB, because so little is not split
off. Where blocks and segments were is known at every event, so the free block that it was made of is, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from ccl_bench.analysis.memory.ranges import Ranges, done, undone
from ccl_bench.analysis.memory.replay import BEFORE
from ccl_bench.analysis.memory.rounding import SMALL_POOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.analysis.memory.ranges import Range
    from ccl_bench.analysis.memory.replay import Event, Life
    from ccl_bench.analysis.memory.rounding import Rounding

SEGMENT_ACTIONS = frozenset({"segment_alloc", "segment_free", "segment_map", "segment_unmap"})


def fill_sizes(
    lives: Sequence[Life], events: Sequence[Event], segments: Iterable[Range], rounding: Rounding
) -> None:
    """Give each life the size of its block; `segments` are those at the snapshot."""
    layout = _Layout(_before(events, segments), rounding)
    layout.begin(sorted((life for life in lives if life.born == BEFORE), key=lambda life: life.address))
    born = {life.born: life for life in lives if life.born != BEFORE}
    died = {life.died: life for life in lives if life.died is not None}
    for order, event in enumerate(events):
        if event.action in SEGMENT_ACTIONS:
            done(layout.segments, event.action, event.address, event.size)
        if order in born:
            layout.allocate(born[order])
        if order in died:
            layout.free(died[order])


def _before(events: Sequence[Event], segments: Iterable[Range]) -> Ranges:
    """Return the segments before the first event."""
    ranges = Ranges(segments)
    for event in reversed(events):
        if event.action in SEGMENT_ACTIONS:
            undone(ranges, event.action, event.address, event.size)
    return ranges


class _Layout:
    """Where the large blocks in use are; small ones share no segment with them."""

    def __init__(self, segments: Ranges, rounding: Rounding) -> None:
        self.segments = segments
        self.rounding = rounding
        self._starts: list[int] = []

    def begin(self, lives: Sequence[Life]) -> None:
        """Place the blocks that were in use before the first event, in order of address."""
        self._starts = [life.address for life in lives if self._rounded(life) > SMALL_POOL]
        for life in lives:
            if life.size is None:
                life.size, life.is_exact = self._remaining(life)

    def allocate(self, life: Life) -> None:
        """Place a block, and size it by the free block that it is made of."""
        rounded = self._rounded(life)
        if life.size is None:
            life.size, life.is_exact = rounded, True
            if rounded > SMALL_POOL and (free := self._free_after(life.address)) is not None:
                life.size = self.rounding.block(rounded, max(free, rounded))
        if rounded > SMALL_POOL:
            insort(self._starts, life.address)

    def free(self, life: Life) -> None:
        """Take a block out."""
        place = bisect_left(self._starts, life.address)
        if place < len(self._starts) and self._starts[place] == life.address:
            del self._starts[place]

    def _rounded(self, life: Life) -> int:
        return self.rounding.rounded(life.requested or life.size or 0)

    def _remaining(self, life: Life) -> tuple[int, bool]:
        """Return the size of a block whose allocation is not in the history, and whether it is sure.

        Free blocks of the large pool have more than 1 MiB, so that a smaller gap belongs to the block.
        """
        rounded = self._rounded(life)
        free = self._free_after(life.address) if rounded > SMALL_POOL else None
        if free is None or free <= rounded:
            return rounded, True
        gap = free - rounded
        return (free, True) if gap <= SMALL_POOL else (rounded, False)

    def _free_after(self, address: int) -> int | None:
        """Return the bytes up to the next block or the segment's end.

        None where no segment is known, or where it can be expanded: then blocks are always split.
        """
        segment = self.segments.at(address)
        if segment is None or segment[2]:
            return None
        place = bisect_right(self._starts, address)
        following = self._starts[place] if place < len(self._starts) else segment[1]
        return min(following, segment[1]) - address
