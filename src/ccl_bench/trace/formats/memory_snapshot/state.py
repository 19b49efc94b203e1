"""Segments and blocks as they were when the snapshot was taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.memory_snapshot.values import amount, flag, mappings, text, whole

if TYPE_CHECKING:
    from ccl_bench.trace.formats.memory_snapshot.stacks import Stacks

ALLOCATED, PENDING, INACTIVE = "allocated", "pending_free", "inactive"

_STATES = {
    "active_allocated": ALLOCATED,
    "active_pending_free": PENDING,
    "active_awaiting_free": PENDING,
    "inactive": INACTIVE,
}

Row = dict[str, object]


def segments_table(segments: list[Row], stacks: Stacks) -> pl.DataFrame:
    """Return the segments; sums that an older layout lacks come from its blocks."""
    return _table("memory_segments", [_segment(segment, stacks) for segment in segments])


def _segment(segment: Row, stacks: Stacks) -> tuple[object, ...]:
    blocks = mappings(segment.get("blocks"))
    summed = dict.fromkeys((ALLOCATED, PENDING, INACTIVE), 0)
    for block in blocks:
        state = _STATES.get(text(block.get("state")) or "", INACTIVE)
        summed[state] += amount(block.get("size")) or 0
    return (
        whole(segment.get("device")),
        amount(segment.get("address")),
        _stated(segment, "total_size", sum(summed.values())),
        _stated(segment, "allocated_size", summed[ALLOCATED]),
        _stated(segment, "active_size", summed[ALLOCATED] + summed[PENDING]),
        amount(segment.get("requested_size")),
        whole(segment.get("stream")),
        text(segment.get("segment_type")),
        flag(segment.get("is_expandable")),
        _pool(segment.get("segment_pool_id")),
        len(blocks),
        stacks.number(segment.get("frames")),
    )


def _table(name: str, rows: list[tuple[object, ...]]) -> pl.DataFrame:
    empty = TABLES[name].empty()
    return pl.DataFrame(rows, schema=empty.schema, orient="row") if rows else empty


def _stated(segment: Row, key: str, summed: int) -> int | None:
    """Return a sum as the snapshot states it, else as it comes from the blocks."""
    stated = amount(segment.get(key))
    return amount(summed) if stated is None else stated


def _pool(value: object) -> str | None:
    """Return the id of a private pool, such as a CUDA graph's; None for the common one."""
    if not isinstance(value, list | tuple) or len(value) != 2 or None in map(whole, value):
        return None
    return f"{value[0]}:{value[1]}" if any(value) else None


def blocks_table(segments: list[Row], stacks: Stacks) -> pl.DataFrame:
    """Return the blocks of all segments; an older layout tells their places by their order alone."""
    return _table("memory_blocks", [row for segment in segments for row in _blocks(segment, stacks)])


def _blocks(segment: Row, stacks: Stacks) -> list[tuple[object, ...]]:
    device, start = whole(segment.get("device")), amount(segment.get("address"))
    stream = whole(segment.get("stream"))
    at = start or 0
    rows: list[tuple[object, ...]] = []
    for block in mappings(segment.get("blocks")):
        size = amount(block.get("size")) or 0
        stated = amount(block.get("address"))
        at = at if stated is None else stated
        requested, frames = _requested(block)
        state = _STATES.get(text(block.get("state")) or "")
        rows.append((device, start, whole(at), size, requested, state, stream, stacks.number(frames)))
        at += size
    return rows


def _requested(block: Row) -> tuple[int | None, object]:
    """Return how many bytes were asked for and the frames; an older layout keeps them in a history."""
    if "frames" in block or "requested_size" in block:
        return amount(block.get("requested_size")), block.get("frames")
    latest = next(iter(mappings(block.get("history"))), {})
    return amount(latest.get("real_size")), latest.get("frames")
