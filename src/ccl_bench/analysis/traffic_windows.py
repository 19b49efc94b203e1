"""Windows of traffic: communication of one dimension, merged while no other dimension communicates."""

from __future__ import annotations

from ccl_bench.analysis.intervals import merged
from ccl_bench.frames import pl


def traffic_windows(traffic: pl.DataFrame) -> pl.DataFrame:
    """Return one row a window of one rank and step, in order.

    Columns: `trace`, `rank`, `step`, `dimension`, `start_ns`, `end_ns`, `calls`, `bytes`, `communication_ns`
    (time with at least one call) and `gap_ns` to the next window of the same step, null for the last.
    """
    place = ["trace", "step"]
    ordered = traffic.sort("trace", "step", "start_ns", "end_ns")
    turns = (pl.col("dimension") != pl.col("dimension").shift(1).over(place)).fill_null(value=True)
    numbered = ordered.with_columns(turns.cum_sum().alias("window"))
    windows = numbered.group_by("trace", "rank", "step", "dimension", "window", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("size_bytes").sum().alias("bytes"),
    )
    busy = (
        merged(numbered, "window")
        .group_by("window")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("communication_ns"))
    )
    gap = pl.col("start_ns").shift(-1).over(place) - pl.col("end_ns")
    return windows.join(busy, on="window", how="left", maintain_order="left").with_columns(
        gap.alias("gap_ns"), pl.col("communication_ns").fill_null(0)
    )
