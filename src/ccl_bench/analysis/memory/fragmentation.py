"""Fragmentation: how much reserved memory is free, in how many pieces, at the snapshot and at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.memory.allocator import Ranges, revert_segment_event
from ccl_bench.analysis.memory.block_lifetimes import devices_in, events_of, segments_of
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.analysis.memory.allocator import Range

PEAK, SNAPSHOT = "peak", "snapshot"


@derived(
    device=("Int64", "device number"),
    moment=("String", "`snapshot`, or `peak`: when most was allocated, where a history shows it"),
    reserved_bytes=("Int64", "bytes held from the driver"),
    allocated_bytes=("Int64", "bytes in tensors"),
    active_bytes=("Int64", "bytes in tensors or still used by a stream"),
    free_bytes=("Int64", "reserved and not active, bytes"),
    largest_free_bytes=("Int64", "the largest piece of these"),
    inactive_split_bytes=(
        "Int64",
        "free bytes of segments that are partly in use, which cannot be given back",
    ),
    unused_ratio=("Float64", "(reserved - allocated) / reserved; null if nothing is reserved"),
    inactive_split_ratio=("Float64", "inactive split / reserved; null if nothing is reserved"),
    scattered_ratio=("Float64", "1 - largest free piece / all free bytes; null if nothing is free"),
    efficiency_ratio=("Float64", "active / reserved; null if nothing is reserved"),
)
def memory_layouts(
    memory_segments: pl.DataFrame,
    memory_lives: pl.DataFrame,
    memory_events: pl.DataFrame,
    memory_peaks: pl.DataFrame,
) -> pl.DataFrame:
    """One device at one moment, with the three measures of fragmentation that are in use."""
    rows = []
    for device in devices_in(memory_segments, memory_peaks):
        lives = memory_lives.filter(pl.col("device") == device)
        segments = segments_of(memory_segments, device)
        alive = lives.filter(pl.col("died").is_null())
        rows.append((device, SNAPSHOT, *_row(segments, alive, alive.filter(pl.col("freed").is_null()))))
        for order in memory_peaks.filter(pl.col("device") == device)["peak_order"].head(1).drop_nulls():
            at_peak = Ranges(segments)
            for event in reversed(events_of(memory_events.filter(pl.col("order") > order), device)):
                revert_segment_event(at_peak, event.action, event.address, event.size)
            alive = lives.filter(_is_at(order, "died"))
            rows.append((device, PEAK, *_row(list(at_peak), alive, alive.filter(_is_at(order, "freed")))))
    table = DERIVED.get("memory_layouts").table
    schema = {name: table.columns[name].type for name in [*table.columns][:8]}
    reserved, free = pl.col("reserved_bytes"), pl.col("free_bytes")
    some, left = reserved > 0, free > 0
    return (
        pl.DataFrame(rows, schema=schema, orient="row")
        .with_columns(
            pl.when(some).then((reserved - pl.col("allocated_bytes")) / reserved).alias("unused_ratio"),
            pl.when(some).then(pl.col("inactive_split_bytes") / reserved).alias("inactive_split_ratio"),
            pl.when(left).then(1 - pl.col("largest_free_bytes") / free).alias("scattered_ratio"),
            pl.when(some).then(pl.col("active_bytes") / reserved).alias("efficiency_ratio"),
        )
        .select(*table.columns)
    )


def _is_at(order: int, end: str) -> pl.Expr:
    """Whether a block is there after an event, up to the `end` of its life."""
    return (pl.col("born") <= order) & (pl.col(end).is_null() | (pl.col(end) > order))


def _row(segments: list[Range], active: pl.DataFrame, allocated: pl.DataFrame) -> tuple[int, ...]:
    """Return reserved, allocated, active, free, largest free and inactive split bytes."""
    blocks = sorted(active.select("address", (pl.col("address") + pl.col("bytes")).alias("end")).iter_rows())
    gaps = list(_gaps(segments, blocks))
    sizes = [end - start for start, end, _ in gaps]
    return (
        sum(end - start for start, end, _ in segments),
        int(allocated["bytes"].sum()),
        int(active["bytes"].sum()),
        sum(sizes),
        max(sizes, default=0),
        sum(end - start for start, end, is_split in gaps if is_split),
    )


def _gaps(segments: list[Range], blocks: list[tuple[int, int]]) -> Iterator[Range]:
    """Yield each free piece of each segment: start, end, and whether it is of a segment partly in use."""
    place = 0
    for start, end, is_expandable in sorted(segments):
        at, is_used = start, False
        while place < len(blocks) and blocks[place][0] < end:
            low, high = blocks[place]
            place += 1
            if low < start:
                continue
            if low > at:
                yield at, low, not is_expandable
            at, is_used = max(at, high), True
        if at < end:
            yield at, end, is_used and not is_expandable


@derived(
    device=("Int64", "device number"),
    address=("Int64", "address of the segment"),
    bytes=("Int64", "size, bytes"),
    kind=("String", "`small` or `large`"),
    pool=("String", "private pool; null for the common one"),
    stream=("Int64", "stream"),
    is_expandable=("Boolean", "whether it grows and shrinks by pages"),
    allocated_bytes=("Int64", "bytes in tensors"),
    free_bytes=("Int64", "bytes of blocks that are not in use"),
    largest_free_bytes=("Int64", "the largest of these blocks"),
    blocks=("Int64", "blocks"),
)
def memory_map(memory_segments: pl.DataFrame, memory_blocks: pl.DataFrame) -> pl.DataFrame:
    """One segment at the snapshot, and what of it is free."""
    free = memory_blocks.filter(pl.col("state") == "inactive").rename({"segment": "segment_address"})
    sums = free.group_by("device", pl.col("segment_address").alias("address")).agg(
        pl.col("bytes").sum().alias("free_bytes"), pl.col("bytes").max().alias("largest_free_bytes")
    )
    rows = memory_segments.join(sums, on=["device", "address"], how="left")
    filled = rows.with_columns(pl.col("free_bytes", "largest_free_bytes").fill_null(0))
    return filled.sort("device", "address").select(*DERIVED.get("memory_map").table.columns)


@derived(
    name=("String", "setting, those of a group as `group.name`"),
    value=("Int64", "its value; 0 and 1 for false and true"),
)
def allocator_settings(memory_settings: pl.DataFrame) -> pl.DataFrame:
    """One setting of the allocator that a snapshot holds."""
    return memory_settings.select("name", "value")
