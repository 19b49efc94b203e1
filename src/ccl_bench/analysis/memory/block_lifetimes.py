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
class Event:
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


def replay_history(events: Sequence[Event], at_end: Sequence[Life]) -> Replay:
    """Return the lives that end in those blocks that are in use `at_end`."""
    replay = Replay(list(at_end))
    in_use = {life.address: life for life in at_end}
    for order in range(len(events) - 1, -1, -1):
        event = events[order]
        if event.action == "alloc":
            _born(replay, in_use, event, order)
        elif event.action == "free_completed":
            _died(replay, in_use, event, order)
        elif event.action == "free_requested":
            _freed(replay, in_use, event, order)
    for life in in_use.values():
        if life.lacks_freeing:
            life.freed = BEFORE
    return replay


def _born(replay: Replay, in_use: dict[int, Life], event: Event, order: int) -> None:
    life = in_use.pop(event.address, None)
    if life is None:
        replay.contradictions += 1
        return
    if life.lacks_freeing:
        life.freed = order if life.died is None else life.died
        replay.contradictions += 1
    life.born = order
    life.requested = event.size
    life.stack = event.stack if event.stack is not None else life.stack
    life.category = event.category or life.category


def _died(replay: Replay, in_use: dict[int, Life], event: Event, order: int) -> None:
    _replace(replay, in_use, Life(event.address, event.size, died=order), order)


def _replace(replay: Replay, in_use: dict[int, Life], life: Life, order: int) -> None:
    """Let a block be in use; what was there later and was never allocated began after it."""
    later = in_use.get(life.address)
    if later is not None:
        later.born = order
        replay.contradictions += 1
    in_use[life.address] = life
    replay.lives.append(life)


def _freed(replay: Replay, in_use: dict[int, Life], event: Event, order: int) -> None:
    life = in_use.get(event.address)
    if life is not None and life.lacks_freeing:
        life.freed = order
        return
    replay.contradictions += 1
    _replace(replay, in_use, Life(event.address, event.size, freed=order, died=order), order)


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
            apply_segment_event(layout.segments, event.action, event.address, event.size)
        if order in born:
            layout.allocate(born[order])
        if order in died:
            layout.free(died[order])


def _before(events: Sequence[Event], segments: Iterable[Range]) -> Ranges:
    """Return the segments before the first event."""
    ranges = Ranges(segments)
    for event in reversed(events):
        if event.action in SEGMENT_ACTIONS:
            revert_segment_event(ranges, event.action, event.address, event.size)
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
    rules = rounding(dict(memory_settings.select("name", "value").iter_rows()))
    parts = []
    for device in devices_in(memory_events, memory_blocks):
        events = events_of(memory_events, device)
        replay = replay_history(events, _in_use(memory_blocks, device))
        fill_sizes(replay.lives, events, segments_of(memory_segments, device), rules)
        parts.append(_table(device, replay))
    return DERIVED.get("memory_lives").table.concat(parts)


def devices_in(*tables: pl.DataFrame) -> list[int]:
    """Return the devices that any of the tables has rows of."""
    return sorted({device for table in tables for device in table["device"].drop_nulls().unique()})


def events_of(memory_events: pl.DataFrame, device: int) -> list[Event]:
    """Return the history of a device in order."""
    device_events = memory_events.filter(pl.col("device") == device).sort("order")
    columns = device_events.select(
        pl.col("action").cast(pl.String),
        pl.col("address").fill_null(0),
        "bytes",
        "stack",
        pl.col("category").cast(pl.String),
    )
    return [Event(*row) for row in columns.iter_rows()]


def segments_of(memory_segments: pl.DataFrame, device: int) -> list[Range]:
    """Return the segments of a device at the snapshot."""
    device_segments = memory_segments.filter(pl.col("device") == device).drop_nulls(["address", "bytes"])
    rows = device_segments.select(
        "address",
        (pl.col("address") + pl.col("bytes")).alias("end"),
        pl.col("is_expandable").fill_null(False),
    )
    return list(rows.iter_rows())


def _in_use(memory_blocks: pl.DataFrame, device: int) -> list[Life]:
    device_blocks = memory_blocks.filter(
        (pl.col("device") == device) & pl.col("state").is_in(["allocated", "pending_free"])
    ).drop_nulls("address")
    columns = device_blocks.select(
        "address", "requested_bytes", "bytes", "stack", pl.col("state") == "pending_free"
    )
    return [
        Life(address, requested, size, stack=stack, is_pending=is_pending)
        for address, requested, size, stack, is_pending in columns.iter_rows()
    ]


def _table(device: int, replay: Replay) -> pl.DataFrame:
    lives = replay.lives
    return DERIVED.get("memory_lives").table.frame(
        {
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
    )
