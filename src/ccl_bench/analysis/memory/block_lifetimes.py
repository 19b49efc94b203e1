"""The life of each block on a device, replayed backwards from the blocks in use at the snapshot."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.memory.allocator import (
    SMALL_POOL,
    Ranges,
    apply_segment_event,
    revert_segment_event,
    rounding,
)
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.analysis.memory.allocator import Range, Rounding

BEFORE = -1
"""Order of what happened before the history."""


@dataclass(slots=True)
class AllocatorEvent:
    """One event of one device."""

    action: str
    address: int
    size: int
    stack: int | None = None
    category: str | None = None


@dataclass(slots=True)
class Life:
    """One block from its allocation until a stream no longer needs it."""

    address: int
    requested: int | None
    size: int | None = None
    """Bytes of the block; None until they are known."""
    born: int = BEFORE
    freed: int | None = None
    """Order of the event that asked to free it; None if it was allocated at the snapshot."""
    died: int | None = None
    """Order of the event that freed it; None if it was in use at the snapshot."""
    stack: int | None = None
    category: str | None = None
    is_pending: bool = False
    """Whether it was freed and still in use at the snapshot."""
    is_exact: bool = True
    """Whether the size is known, not the least that it can be."""

    @property
    def lacks_freeing(self) -> bool:
        """Whether it was freed, by an event that has not been met."""
        return self.freed is None and (self.died is not None or self.is_pending)


@dataclass(slots=True)
class Replay:
    """The lives of one device's blocks."""

    lives: list[Life] = field(default_factory=list)
    contradictions: int = 0
    """Events that do not fit those after them."""


def replay_history(events: Sequence[AllocatorEvent], at_end: Sequence[Life]) -> Replay:
    """Return the lives that end in those blocks that are in use `at_end`."""
    replay = Replay(list(at_end))
    in_use = {life.address: life for life in at_end}

    def place(life: Life, order: int) -> None:
        """Let a block be in use; what was there later and was never allocated began after it."""
        later = in_use.get(life.address)
        if later is not None:
            later.born = order
            replay.contradictions += 1
        in_use[life.address] = life
        replay.lives.append(life)

    for order in range(len(events) - 1, -1, -1):
        event = events[order]
        if event.action == "alloc":
            life = in_use.pop(event.address, None)
            if life is None:
                replay.contradictions += 1
                continue
            if life.lacks_freeing:
                life.freed = order if life.died is None else life.died
                replay.contradictions += 1
            life.born = order
            life.requested = event.size
            life.stack = event.stack if event.stack is not None else life.stack
            life.category = event.category or life.category
        elif event.action == "free_completed":
            place(Life(event.address, event.size, died=order), order)
        elif event.action == "free_requested":
            life = in_use.get(event.address)
            if life is not None and life.lacks_freeing:
                life.freed = order
            else:
                replay.contradictions += 1
                place(Life(event.address, event.size, freed=order, died=order), order)
    for life in in_use.values():
        if life.lacks_freeing:
            life.freed = BEFORE
    return replay


SEGMENT_ACTIONS = frozenset({"segment_alloc", "segment_free", "segment_map", "segment_unmap"})


def fill_sizes(
    lives: Sequence[Life], events: Sequence[AllocatorEvent], segments: Iterable[Range], rounding: Rounding
) -> None:
    """Give each life the size of its block; `segments` are those at the snapshot."""
    before = Ranges(segments)
    for event in reversed(events):
        if event.action in SEGMENT_ACTIONS:
            revert_segment_event(before, event.action, event.address, event.size)
    layout = _Layout(before, rounding)
    layout.begin(sorted((life for life in lives if life.born == BEFORE), key=lambda life: life.address))
    born = {life.born: life for life in lives if life.born != BEFORE}
    died = {life.died: life for life in lives if life.died is not None}
    for order, event in enumerate(events):
        if event.action in SEGMENT_ACTIONS:
            apply_segment_event(layout.segments, event.action, event.address, event.size)
        if order in born:
            layout.allocate(born[order])
        if order in died:
            layout.free(died[order])


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
            if life.size is not None:
                continue
            # The allocation is not in the history. Free blocks of the large pool have more than 1 MiB, so
            # that a smaller gap belongs to the block.
            rounded = self._rounded(life)
            free = self._free_after(life.address) if rounded > SMALL_POOL else None
            has_gap = free is not None and free > rounded
            is_free = has_gap and free is not None and free - rounded > SMALL_POOL
            life.size, life.is_exact = rounded, not is_free
            if has_gap and not is_free:
                life.size = free

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

    def _free_after(self, address: int) -> int | None:
        """Return the bytes up to the next block or the segment's end.

        None if no segment is known, or where it can be expanded: then blocks are always split.
        """
        segment = self.segments.at(address)
        if segment is None or segment[2]:
            return None
        place = bisect_right(self._starts, address)
        following = self._starts[place] if place < len(self._starts) else segment[1]
        return min(following, segment[1]) - address


@derived(
    device=("Int64", "device number"),
    address=("Int64", "address on the device"),
    bytes=("Int64", "size of the block, bytes; of one that is gone, as the allocator's rules make it"),
    requested_bytes=("Int64", "requested bytes"),
    born=("Int64", "order of the event that allocated it; -1 where that was before the history"),
    freed=("Int64", "order of the event that asked to free it; null if it was allocated at the snapshot"),
    died=("Int64", "order of the event that freed it; null if it was in use at the snapshot"),
    category=("String", "use of the memory, if a profiler recorded it"),
    stack=("Int64", "call stack that allocated it; null if none was recorded"),
    is_exact=("Boolean", "whether `bytes` is known, not the least that it can be"),
    contradictions=("Int64", "events of the device that do not fit those after them"),
)
def memory_lives(
    memory_events: pl.DataFrame,
    memory_blocks: pl.DataFrame,
    memory_segments: pl.DataFrame,
    memory_settings: pl.DataFrame,
) -> pl.DataFrame:
    """One block from its allocation until no stream needs it, replayed backwards from the snapshot."""
    table = DERIVED.get("memory_lives").table
    rules = rounding(dict(memory_settings.select("name", "value").iter_rows()))
    is_used = pl.col("state").is_in(["allocated", "pending_free"])
    blocks = memory_blocks.filter(is_used).drop_nulls("address")
    parts = []
    for device in devices_in(memory_events, memory_blocks):
        at_snapshot = blocks.filter(pl.col("device") == device).select(
            "address", "requested_bytes", "bytes", "stack", pl.col("state") == "pending_free"
        )
        in_use = [
            Life(address, requested, size, stack=stack, is_pending=is_pending)
            for address, requested, size, stack, is_pending in at_snapshot.iter_rows()
        ]
        events = events_of(memory_events, device)
        replay = replay_history(events, in_use)
        lives = replay.lives
        fill_sizes(lives, events, segments_of(memory_segments, device), rules)
        columns: dict[str, list[object]] = {
            "device": [device] * len(lives),
            "address": [life.address for life in lives],
            "bytes": [life.size for life in lives],
            "requested_bytes": [life.requested for life in lives],
            "born": [life.born for life in lives],
            "freed": [life.freed for life in lives],
            "died": [life.died for life in lives],
            "category": [life.category for life in lives],
            "stack": [life.stack for life in lives],
            "is_exact": [life.is_exact for life in lives],
            "contradictions": [replay.contradictions] * len(lives),
        }
        parts.append(table.frame(columns))
    return table.concat(parts)


def devices_in(*tables: pl.DataFrame) -> list[int]:
    """Return the devices that any of the tables has rows of."""
    return sorted({device for table in tables for device in table["device"].drop_nulls().unique()})


def events_of(memory_events: pl.DataFrame, device: int) -> list[AllocatorEvent]:
    """Return the history of a device in order."""
    device_events = memory_events.filter(pl.col("device") == device).sort("order")
    columns = device_events.select(
        pl.col("action").cast(pl.String),
        pl.col("address").fill_null(0),
        "bytes",
        "stack",
        pl.col("category").cast(pl.String),
    )
    return [AllocatorEvent(*row) for row in columns.iter_rows()]


def segments_of(memory_segments: pl.DataFrame, device: int) -> list[Range]:
    """Return the segments of a device at the snapshot."""
    device_segments = memory_segments.filter(pl.col("device") == device).drop_nulls(["address", "bytes"])
    rows = device_segments.select(
        "address",
        (pl.col("address") + pl.col("bytes")).alias("end"),
        pl.col("is_expandable").fill_null(False),
    )
    return list(rows.iter_rows())
