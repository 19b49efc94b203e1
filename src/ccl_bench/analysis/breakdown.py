"""Where the time of each step went: compute, communication, copies, idle."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.intervals import clipped, union_lengths
from ccl_bench.analysis.work import COMMUNICATION, COMPUTE, FUSED
from ccl_bench.base.lazy_polars import pl

_PPM = 1_000_000


def device_windows(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the device windows of `steps` as plain intervals, in the same order."""
    return steps.select(start_ns="device_start_ns", end_ns="device_end_ns")


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    compute_ns=("Int64", "time with at least one compute kernel, ns"),
    communication_ns=("Int64", "time with at least one communication kernel, ns"),
    overlap_ns=("Int64", "time with both, ns"),
    fused_ns=("Int64", "time with kernels that compute and communicate in one, and no compute, ns"),
    exposed_communication_ns=("Int64", "time with communication and neither of those, ns"),
    exposed_memory_ns=("Int64", "time with copies or sets alone, ns"),
    busy_ns=("Int64", "time with any work, ns"),
    idle_ns=("Int64", "time without work, ns"),
)
def breakdown(steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: compute + fused + exposed communication + exposed memory + idle = window."""
    windows = device_windows(steps)

    def time_with(*kinds: str) -> pl.Series:
        return union_lengths(work.filter(pl.col("kind").is_in(kinds)), windows)

    compute, communication = time_with(COMPUTE), time_with(COMMUNICATION)
    kernels = either = time_with(COMPUTE, COMMUNICATION)
    computing = compute
    if (work["kind"] == FUSED).any():
        computing, kernels = time_with(COMPUTE, FUSED), time_with(COMPUTE, COMMUNICATION, FUSED)
    busy = union_lengths(work, windows)
    window = windows["end_ns"] - windows["start_ns"]
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": window,
            "compute_ns": compute,
            "communication_ns": communication,
            "overlap_ns": compute + communication - either,
            "fused_ns": computing - compute,
            "exposed_communication_ns": kernels - computing,
            "exposed_memory_ns": busy - kernels,
            "busy_ns": busy,
            "idle_ns": window - busy,
        }
    )


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    occupied_ns=("Float64", "integral of the share of occupied multiprocessors over the window, ns"),
    compute_occupied_ns=("Float64", "the same over compute kernels alone, ns"),
    communication_occupied_ns=("Float64", "the same over communication kernels alone, ns"),
    kernel_ns=("Int64", "time with at least one kernel, ns"),
    occupancy_pct=("Float64", "mean estimated achieved occupancy, weighted by kernel time, %"),
    occupancy_weight_ns=("Int64", "kernel time behind that mean, each kernel for itself, ns"),
    rated_kernels=("Int64", "kernels with a recorded grid"),
    kernels=("Int64", "kernels"),
)
def sm_use(steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: how much of the multiprocessors its kernels could occupy."""
    windows = device_windows(steps)
    kernels = work.filter("is_kernel")
    inside = clipped(kernels, windows)
    length = pl.col("end_ns") - pl.col("start_ns")
    with_occupancy = length.filter(pl.col("occupancy_pct").is_not_null()).sum()
    rated = inside.group_by("window").agg(
        ((pl.col("occupancy_pct") * length).sum() / with_occupancy).fill_nan(None),
        with_occupancy.alias("occupancy_weight_ns"),
        pl.col("occupied").count().cast(pl.Int64).alias("rated_kernels"),
        pl.len().cast(pl.Int64).alias("kernels"),
    )
    rows = windows.with_row_index("window").select(pl.col("window").cast(pl.Int64))
    rated = rows.join(rated, on="window", how="left", maintain_order="left")
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": windows["end_ns"] - windows["start_ns"],
            "occupied_ns": _occupied(inside, rows),
            "compute_occupied_ns": _occupied(inside.filter(pl.col("kind") == COMPUTE), rows),
            "communication_occupied_ns": _occupied(inside.filter(pl.col("kind") == COMMUNICATION), rows),
            "kernel_ns": union_lengths(kernels, windows),
            "occupancy_pct": rated["occupancy_pct"],
            "occupancy_weight_ns": rated["occupancy_weight_ns"].fill_null(0),
            "rated_kernels": rated["rated_kernels"].fill_null(0),
            "kernels": rated["kernels"].fill_null(0),
        }
    )


def _occupied(inside: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return, for each window, the integral of the summed `occupied` shares, each instant capped at 1.

    Shares are counted in millionths so that a kernel's end takes away exactly what its start added.
    """
    share = (pl.col("occupied") * _PPM).round().cast(pl.Int64)
    known = inside.select("window", "start_ns", "end_ns", change=share).drop_nulls("change")
    rises = known.select("window", "change", at="start_ns")
    falls = known.select("window", -pl.col("change"), at="end_ns")
    levels = (
        pl.concat([rises, falls])
        .sort("window", "at")
        .with_columns(
            pl.col("change").cum_sum().over("window").clip(0, _PPM).alias("level"),
            (pl.col("at").shift(-1).over("window") - pl.col("at")).alias("length"),
        )
    )
    sums = levels.group_by("window").agg((pl.col("level") * pl.col("length")).sum() / _PPM)
    return windows.join(sums, on="window", how="left", maintain_order="left")["level"].fill_null(0.0)
