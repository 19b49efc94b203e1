"""The life of each block on a device: the table that everything about memory over time comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.memory.replay import Event, Life, Replay, replayed
from ccl_bench.analysis.memory.rounding import rounding
from ccl_bench.analysis.memory.sizes import fill_sizes
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.memory.ranges import Range


@derived(
    device=("Int64", "device number"),
    address=("Int64", "address on the device"),
    bytes=("Int64", "size of the block, bytes; of one that is gone, as the allocator's rules make it"),
    requested_bytes=("Int64", "bytes that were asked for"),
    born=("Int64", "order of the event that allocated it; -1 where that was before the history"),
    freed=("Int64", "order of the event that asked to free it; null where it was allocated at the snapshot"),
    died=("Int64", "order of the event that freed it; null where it was in use at the snapshot"),
    category=("String", "what it is for, where a profiler knew"),
    stack=("Int64", "call stack that allocated it; null where none was recorded"),
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
        found = replayed(events, _in_use(memory_blocks, device))
        fill_sizes(found.lives, events, segments_of(memory_segments, device), rules)
        parts.append(_table(device, found))
    return DERIVED.get("memory_lives").table.together(parts)


def devices_in(*tables: pl.DataFrame) -> list[int]:
    """Return the devices that any of the tables has rows of."""
    return sorted({device for table in tables for device in table["device"].drop_nulls().unique()})


def events_of(memory_events: pl.DataFrame, device: int) -> list[Event]:
    """Return the history of a device in order."""
    own = memory_events.filter(pl.col("device") == device).sort("order")
    columns = own.select(
        pl.col("action").cast(pl.String),
        pl.col("address").fill_null(0),
        "bytes",
        "stack",
        pl.col("category").cast(pl.String),
    )
    return [Event(*row) for row in columns.iter_rows()]


def segments_of(memory_segments: pl.DataFrame, device: int) -> list[Range]:
    """Return the segments of a device at the snapshot."""
    own = memory_segments.filter(pl.col("device") == device).drop_nulls(["address", "bytes"])
    rows = own.select(
        "address",
        (pl.col("address") + pl.col("bytes")).alias("end"),
        pl.col("is_expandable").fill_null(False),
    )
    return list(rows.iter_rows())


def _in_use(memory_blocks: pl.DataFrame, device: int) -> list[Life]:
    own = memory_blocks.filter(
        (pl.col("device") == device) & pl.col("state").is_in(["allocated", "pending_free"])
    ).drop_nulls("address")
    columns = own.select("address", "requested_bytes", "bytes", "stack", pl.col("state") == "pending_free")
    return [
        Life(address, requested, size, stack=stack, is_pending=is_pending)
        for address, requested, size, stack, is_pending in columns.iter_rows()
    ]


def _table(device: int, found: Replay) -> pl.DataFrame:
    lives = found.lives
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
            "contradictions": [found.contradictions] * len(lives),
        }
    )
