"""The memory of devices over time, of those with the highest peaks."""

from __future__ import annotations

from typing import Any

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.shared.rows import SECOND_NS, label
from ccl_bench.result.observation import MemoryCurve

_DEVICES = 4
"""Devices that a chart can show."""


def memory_curves(outline: pl.DataFrame) -> tuple[list[MemoryCurve], int]:
    """Return the curves of the devices with the highest peaks, and how many devices there are."""
    keys = ["trace", "device"]
    peaks = outline.group_by(*keys, "rank", "iteration").agg(pl.col("highest_allocated_bytes").max())
    highest = peaks.sort("highest_allocated_bytes", "rank", "device", descending=[True, False, False])
    several = outline.select("rank", "device").unique().group_by("rank").len()["len"].max() or 1
    return [
        _curve(
            key,
            outline.filter((pl.col("trace") == key["trace"]) & (pl.col("device") == key["device"])),
            several,
        )
        for key in highest.head(_DEVICES).iter_rows(named=True)
    ], peaks.height


def _curve(key: dict[str, Any], points: pl.DataFrame, devices_of_rank: Any) -> MemoryCurve:
    ordered = points.sort("point")
    is_timed = not ordered["time_ns"].tail(-1).null_count() and ordered["time_ns"].n_unique() > 1
    times = (ordered["time_ns"].backward_fill() - ordered["time_ns"].min()) / SECOND_NS
    name = label(key["rank"]) if devices_of_rank == 1 else f"{label(key['rank'])}, device {key['device']}"
    window = "" if key["iteration"] is None else f", window {key['iteration']}"
    return MemoryCurve(
        name + window,
        int(ordered["events"].max() or 0),  # type: ignore[arg-type]
        is_timed,
        (times if is_timed else ordered["order"].cast(pl.Float64)).to_list(),
        ordered["lowest_allocated_bytes"].to_list(),
        ordered["highest_allocated_bytes"].to_list(),
        ordered["highest_reserved_bytes"].to_list(),
    )
