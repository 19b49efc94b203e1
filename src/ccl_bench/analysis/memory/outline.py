"""Memory over time in few points, which keep every peak."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.base.lazy_polars import pl

POINTS = 500
"""Points of one device at most."""


@derived(
    device=("Int64", "device number"),
    point=("Int64", "number of the point, from 0"),
    order=("Int64", "order of its first event; -1 for the state before the first one"),
    time_ns=("Int64", "time of its first event, ns; null where none is recorded"),
    events=("Int64", "states of the allocator that it stands for"),
    lowest_allocated_bytes=("Int64", "least bytes of blocks in tensors"),
    highest_allocated_bytes=("Int64", "most bytes of blocks in tensors"),
    highest_reserved_bytes=("Int64", "most bytes held from the driver"),
)
def memory_outline(memory_timeline: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a device's history: equally many states of the allocator each, with their extremes."""
    numbered = memory_timeline.sort("device", "order").with_columns(
        pl.int_range(pl.len()).over("device").alias("number"),
        ((pl.len() + POINTS - 1) // POINTS).over("device").alias("each"),
    )
    return (
        numbered.group_by("device", (pl.col("number") // pl.col("each")).cast(pl.Int64).alias("point"))
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
