"""Memory over time: sums over the blocks in use after each event, their peaks, and a short outline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.memory.block_lifetimes import BEFORE
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from polars.dataframe.group_by import GroupBy

UNKNOWN = "unknown"

_PARTS = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")

_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _changes(lives: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the change of the sums at each birth, freeing and death, at the order of its event."""
    size, requested_size = pl.col("bytes"), pl.col("requested_bytes").fill_null(pl.col("bytes"))
    none = pl.lit(0, dtype=pl.Int64)
    steps = (
        ("born", size, size, requested_size),
        ("freed", -size, none, -requested_size),
        ("died", none, -size, none),
    )
    return pl.concat(
        [
            lives.drop_nulls(order).select(
                "device",
                *keys,
                pl.col(order).alias("order"),
                allocated.alias("allocated_bytes"),
                active.alias("active_bytes"),
                requested.alias("requested_bytes"),
            )
            for order, allocated, active, requested in steps
        ]
    )


@derived(
    device=("Int64", "device number"),
    order=("Int64", "order of the event; -1 for the state before the first one"),
    time_ns=("Int64", "time of the event, ns; null before the first one and where none is recorded"),
    allocated_bytes=("Int64", "bytes of blocks in tensors"),
    active_bytes=("Int64", "these, and bytes of freed blocks that a stream may still use"),
    requested_bytes=("Int64", "requested bytes of the blocks in tensors"),
    reserved_bytes=("Int64", "bytes held from the driver"),
)
def memory_timeline(
    memory_lives: pl.DataFrame, memory_events: pl.DataFrame, memory_segments: pl.DataFrame
) -> pl.DataFrame:
    """One state of a device's allocator: before the history, and after each event that changed it."""
    sign = pl.col("action").cast(pl.String).replace_strict(_SIGNS, default=None, return_dtype=pl.Int64)
    reserved = memory_events.select("device", "order", reserved_bytes=pl.col("bytes") * sign).drop_nulls(
        "reserved_bytes"
    )
    # A first change makes the state at the end that of the snapshot.
    first = {"order": pl.lit(BEFORE, dtype=pl.Int64)}
    ends = memory_segments.select("device", **first, reserved_bytes="bytes")
    undone = reserved.select("device", **first, reserved_bytes=-pl.col("reserved_bytes"))
    held = pl.concat([reserved, ends, undone]).drop_nulls("device")
    changes = pl.concat([_changes(memory_lives), held], how="diagonal")
    return _with_times(_summed(changes, _PARTS, "device"), memory_events)


@derived(
    device=("Int64", "device number"),
    category=("String", "use of the memory; `unknown` if no profiler recorded it"),
    order=("Int64", "order of the event; -1 for the state before the first one"),
    time_ns=("Int64", "time of the event, ns; null before the first one and where none is recorded"),
    allocated_bytes=("Int64", "bytes of blocks in tensors of this category"),
)
def memory_categories(memory_lives: pl.DataFrame, memory_events: pl.DataFrame) -> pl.DataFrame:
    """One category of memory on a device, after each event that changed it."""
    lives = memory_lives.with_columns(pl.col("category").fill_null(UNKNOWN))
    parts = ("allocated_bytes",)
    summed = _summed(_changes(lives, "category"), parts, "device", "category")
    return _with_times(summed, memory_events).select("device", "category", "order", "time_ns", *parts)


def _summed(changes: pl.DataFrame, parts: tuple[str, ...], *keys: str) -> pl.DataFrame:
    """Return the running sums of changes, one row for each order that has any."""
    by_order = changes.group_by(*keys, "order").agg(pl.col(parts).sum()).sort(*keys, "order")
    return by_order.with_columns(pl.col(parts).cum_sum().over(keys))


def _with_times(states: pl.DataFrame, memory_events: pl.DataFrame) -> pl.DataFrame:
    times = memory_events.select("device", "order", "time_ns")
    joined = states.join(times, on=["device", "order"], how="left", maintain_order="left")
    return joined.select("device", "order", "time_ns", pl.exclude("device", "order", "time_ns"))


POINTS = 500
"""Points of one device at most: as many as a picture shows."""


def _by_point(memory_timeline: pl.DataFrame) -> GroupBy:
    """Return the states of each device in stretches of equally many, in order."""
    each = (pl.len() + POINTS - 1) // POINTS
    numbered = memory_timeline.sort("device", "order").with_columns(
        point=(pl.int_range(pl.len()) // each).over("device").cast(pl.Int64)
    )
    return numbered.group_by("device", "point", maintain_order=True)


@derived(
    device=("Int64", "device number"),
    point=("Int64", "number of the point, from 0"),
    order=("Int64", "order of its first event; -1 for the state before the first one"),
    time_ns=("Int64", "time of its first event, ns; null if none is recorded"),
    events=("Int64", "number of states of the allocator that it summarises"),
    lowest_allocated_bytes=("Int64", "least bytes of blocks in tensors"),
    highest_allocated_bytes=("Int64", "most bytes of blocks in tensors"),
    highest_reserved_bytes=("Int64", "most bytes held from the driver"),
)
def memory_outline(memory_timeline: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a device's history: equally many states of the allocator each, with their extremes."""
    return (
        _by_point(memory_timeline)
        .agg(
            pl.col("order").first(),
            pl.col("time_ns").first(),
            pl.len().cast(pl.Int64).alias("events"),
            pl.col("allocated_bytes").min().alias("lowest_allocated_bytes"),
            pl.col("allocated_bytes").max().alias("highest_allocated_bytes"),
            pl.col("reserved_bytes").max().alias("highest_reserved_bytes"),
        )
        .sort("device", "point")
    )


@derived(
    device=("Int64", "device number"),
    category=("String", "use of the memory; `unknown` if no profiler recorded it"),
    point=("Int64", "number of the point, from 0; those of `memory_outline`"),
    order=("Int64", "order of the last event of the point"),
    time_ns=("Int64", "time of that event, ns; null if none is recorded"),
    allocated_bytes=("Int64", "bytes of blocks in tensors of this category after that event"),
)
def category_outline(memory_categories: pl.DataFrame, memory_timeline: pl.DataFrame) -> pl.DataFrame:
    """One category of memory on a device at the end of each stretch of its history."""
    ends = _by_point(memory_timeline).agg(pl.col("order", "time_ns").last())
    kinds = memory_categories.select("device", "category").unique()
    points = ends.join(kinds, on="device").sort("order")
    states = memory_categories.select("device", "category", "order", "allocated_bytes").sort("order")
    outline = points.join_asof(states, on="order", by=["device", "category"], check_sortedness=False)
    rows = outline.with_columns(pl.col("allocated_bytes").fill_null(0)).sort("device", "category", "point")
    return rows.select(*DERIVED.get("category_outline").table.columns)


@derived(
    device=("Int64", "device number"),
    peak_allocated_bytes=("Int64", "most bytes in tensors; null without a history, as the other peaks"),
    peak_active_bytes=("Int64", "most bytes in tensors or still used by a stream"),
    peak_requested_bytes=("Int64", "most requested bytes"),
    peak_reserved_bytes=("Int64", "most bytes held from the driver"),
    peak_order=("Int64", "order of the event after which most is allocated; -1 before the first one"),
    peak_time_ns=("Int64", "time of that event, ns"),
    allocated_bytes=("Int64", "bytes in tensors at the snapshot"),
    active_bytes=("Int64", "bytes in tensors or still used by a stream at the snapshot"),
    requested_bytes=("Int64", "requested bytes of the blocks in tensors at the snapshot"),
    reserved_bytes=("Int64", "bytes held from the driver at the snapshot"),
    start_allocated_bytes=("Int64", "bytes in tensors before the first event"),
    events=("Int64", "events of the history"),
    ooms=("Int64", "times that memory ran out"),
    contradictions=("Int64", "events that do not fit those after them"),
    inexact_bytes=("Int64", "bytes of blocks whose size is the least it can be"),
)
def memory_peaks(
    memory_timeline: pl.DataFrame,
    memory_lives: pl.DataFrame,
    memory_events: pl.DataFrame,
    memory_segments: pl.DataFrame,
) -> pl.DataFrame:
    """One device of a snapshot: its peaks over the history, and its state before and after it."""
    sums = [pl.col(part) for part in _PARTS]
    top = pl.col("allocated_bytes").arg_max()
    states = (
        memory_timeline.sort("device", "order")
        .group_by("device")
        .agg(
            *[column.max().name.prefix("peak_") for column in sums],
            pl.col("order").get(top).alias("peak_order"),
            pl.col("time_ns").get(top).alias("peak_time_ns"),
            *[column.last() for column in sums],
            pl.col("allocated_bytes").filter(pl.col("order") < 0).sum().alias("start_allocated_bytes"),
        )
    )
    ran_out = pl.col("action").cast(pl.String) == "oom"
    counts = memory_events.group_by("device").agg(
        pl.len().cast(pl.Int64).alias("events"), ran_out.sum().cast(pl.Int64).alias("ooms")
    )
    doubts = memory_lives.group_by("device").agg(
        pl.col("contradictions").max(),
        pl.col("bytes").filter(~pl.col("is_exact")).sum().alias("inexact_bytes"),
    )
    devices = pl.concat([memory_segments.select("device"), states.select("device"), counts.select("device")])
    rows = devices.drop_nulls().unique()
    for part in (states, counts, doubts):
        rows = rows.join(part, on="device", how="left")
    rows = rows.with_columns(pl.col("events", "ooms", "contradictions", "inexact_bytes").fill_null(0))
    peaks = pl.col("^peak_.*$", "start_allocated_bytes")
    rows = rows.with_columns(pl.when(pl.col("events") > 0).then(peaks))
    return rows.sort("device").select(*DERIVED.get("memory_peaks").table.columns)
