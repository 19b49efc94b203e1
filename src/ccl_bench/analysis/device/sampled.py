"""Samples of hardware counters, by step."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import assign_window, clip, device_windows, sum_per_window
from ccl_bench.base.lazy_imports import pl

SM_ACTIVE = "SM Active"


def _numbered(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the number and length of each step's device window, with the window's row as `window`."""
    windows = device_windows(steps)
    return windows.select(
        window=pl.int_range(pl.len(), dtype=pl.Int64), window_ns=pl.col("end_ns") - pl.col("start_ns")
    ).with_columns(step=steps["step"])


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    samples=("Int64", "samples of `SM Active` in the window"),
    sm_active_pct=("Float64", "their mean, %; null without samples"),
)
def sm_samples(steps: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: the share of multiprocessors that had work, as the hardware sampled it."""
    windows = device_windows(steps)
    window = windows["end_ns"] - windows["start_ns"]
    if counters.is_empty():
        table = DERIVED.get("sm_samples").table
        return table.frame({"step": steps["step"], "window_ns": window, "samples": [0] * steps.height})
    means = (
        assign_window(counters.filter(pl.col("name") == SM_ACTIVE), windows, "time_ns")
        .group_by("window")
        .agg(pl.len().cast(pl.Int64).alias("samples"), pl.col("value").mean().alias("sm_active_pct"))
    )
    per_window = sum_per_window(windows, means)
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": window,
            "samples": per_window["samples"].fill_null(0),
            "sm_active_pct": per_window["sm_active_pct"],
        }
    )


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    counter=("String", "name of the counter, such as `Tensor Active`"),
    samples=("Int64", "samples of it in the window"),
    mean_pct=("Float64", "their mean, %"),
)
def sampled_counters(steps: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """One hardware counter in one step of one trace: the mean of its samples."""
    if counters.is_empty():
        return DERIVED.get("sampled_counters").table.empty()
    windows = device_windows(steps)
    means = (
        assign_window(counters, windows, "time_ns")
        .group_by("window", "name")
        .agg(pl.len().cast(pl.Int64).alias("samples"), pl.col("value").mean().alias("mean_pct"))
    )
    rows = _numbered(steps).join(means, on="window").rename({"name": "counter"}).sort("window", "counter")
    return rows.select(*DERIVED.get("sampled_counters").table.columns)


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    card=("String", "network card and port"),
    is_sent=("Boolean", "whether the card sent it; else it received it"),
    covered_ns=("Int64", "time of the window that samples cover, ns"),
    bytes=("Float64", "bytes in that time"),
)
def network_rates(steps: pl.DataFrame, network_traffic: pl.DataFrame) -> pl.DataFrame:
    """One direction of a network card in one step of one trace: bytes in the time that samples cover."""
    if network_traffic.is_empty():
        return DERIVED.get("network_rates").table.empty()
    windows = device_windows(steps)
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = (
        clip(network_traffic, windows)
        .group_by("window", "card", "is_sent")
        .agg(length.sum().alias("covered_ns"), (pl.col("bytes_per_s") * length / 1e9).sum().alias("bytes"))
    )
    rates = _numbered(steps).join(sums, on="window").sort("window", "card", "is_sent")
    return rates.select(*DERIVED.get("network_rates").table.columns)
