"""The most memory of each device in the history, and what it comes to at the snapshot."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_polars import pl

_PARTS = ("allocated", "active", "requested", "reserved")


@derived(
    device=("Int64", "device number"),
    peak_allocated_bytes=("Int64", "most bytes in tensors; null without a history, as the other peaks"),
    peak_active_bytes=("Int64", "most bytes in tensors or still used by a stream"),
    peak_requested_bytes=("Int64", "most bytes that were asked for"),
    peak_reserved_bytes=("Int64", "most bytes held from the driver"),
    peak_order=("Int64", "order of the event after which most is allocated; -1 before the first one"),
    peak_time_ns=("Int64", "time of that event, ns"),
    allocated_bytes=("Int64", "bytes in tensors at the snapshot"),
    active_bytes=("Int64", "bytes in tensors or still used by a stream at the snapshot"),
    requested_bytes=("Int64", "bytes that were asked for of those in tensors at the snapshot"),
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
    sums = [pl.col(f"{part}_bytes") for part in _PARTS]
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
