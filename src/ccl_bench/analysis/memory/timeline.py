"""Memory over time: sums over the blocks that are in use after each event of the allocator."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.memory.replay import BEFORE
from ccl_bench.base.lazy_polars import pl

UNKNOWN = "unknown"

_PARTS = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")

_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _changes(lives: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return what each birth, freeing and death adds to the sums, at the order of its event."""
    size, asked = pl.col("bytes"), pl.col("requested_bytes").fill_null(pl.col("bytes"))
    none = pl.lit(0, dtype=pl.Int64)
    steps = (
        ("born", size, size, asked),
        ("freed", -size, none, -asked),
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


def _reserved(memory_events: pl.DataFrame, memory_segments: pl.DataFrame) -> pl.DataFrame:
    """Return what each event adds to what is reserved, and before the first one what makes the end right."""
    sign = pl.col("action").cast(pl.String).replace_strict(_SIGNS, default=None, return_dtype=pl.Int64)
    events = memory_events.select("device", "order", (pl.col("bytes") * sign).alias("reserved_bytes"))
    changes = events.drop_nulls("reserved_bytes")
    ends = memory_segments.select("device", pl.lit(BEFORE, dtype=pl.Int64).alias("order"), "reserved_bytes")
    undone = changes.select(
        "device", pl.lit(BEFORE, dtype=pl.Int64).alias("order"), -pl.col("reserved_bytes")
    )
    return pl.concat([changes, ends, undone]).drop_nulls("device")


@derived(
    device=("Int64", "device number"),
    order=("Int64", "order of the event; -1 for the state before the first one"),
    time_ns=("Int64", "time of the event, ns; null before the first one and where none is recorded"),
    allocated_bytes=("Int64", "bytes of blocks in tensors"),
    active_bytes=("Int64", "these, and bytes of freed blocks that a stream may still use"),
    requested_bytes=("Int64", "bytes that were asked for, of the blocks in tensors"),
    reserved_bytes=("Int64", "bytes held from the driver"),
)
def memory_timeline(
    memory_lives: pl.DataFrame, memory_events: pl.DataFrame, memory_segments: pl.DataFrame
) -> pl.DataFrame:
    """One state of a device's allocator: before the history, and after each event that changed it."""
    held = memory_segments.rename({"bytes": "reserved_bytes"})
    changes = [_changes(memory_lives), _reserved(memory_events, held)]
    return _with_times(_summed(pl.concat(changes, how="diagonal"), _PARTS, "device"), memory_events)


@derived(
    device=("Int64", "device number"),
    category=("String", "what the memory is for; `unknown` where no profiler knew"),
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
