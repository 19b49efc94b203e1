"""Breakdown of each step: compute, communication, copies, idle time by cause; use of the SMs."""

from __future__ import annotations

from functools import reduce
from operator import or_

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.work import COMMUNICATION, COMPUTE, FUSED
from ccl_bench.analysis.intervals import (
    beyond_windows,
    clip,
    device_windows,
    merge_intervals,
    sum_per_window,
    union_lengths,
)
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema.table import keep_rows

_PPM = 1_000_000

_OCCUPIED = ("occupied_ns", "compute_occupied_ns", "communication_occupied_ns")


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
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
    """One step of one trace: compute + fused + exposed communication + exposed memory + idle = its length."""
    windows, spans = device_windows(steps), work[["start_ns", "end_ns"]]

    def time_with(*kinds: str) -> pl.Series:
        masks = [work["kind"] == kind for kind in kinds]
        return union_lengths(keep_rows(spans, reduce(or_, masks)), windows)

    compute, communication = time_with(COMPUTE), time_with(COMMUNICATION)
    kernels = either = time_with(COMPUTE, COMMUNICATION)
    computing = compute
    if (work["kind"] == FUSED).any():
        computing, kernels = time_with(COMPUTE, FUSED), time_with(COMPUTE, COMMUNICATION, FUSED)
    busy = union_lengths(work, windows)
    window = steps["length_ns"]
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
    window_ns=("Int64", "length of the step, ns"),
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
    columns = ("start_ns", "end_ns", "kind", "occupied", "occupancy_pct")
    kernels = work.select(pl.col(columns).filter("is_kernel"))
    inside = clip(kernels, windows)
    length = pl.col("end_ns") - pl.col("start_ns")
    with_occupancy = length.filter(pl.col("occupancy_pct").is_not_null()).sum()
    rated = inside.group_by("window").agg(
        ((pl.col("occupancy_pct") * length).sum() / with_occupancy).fill_nan(None),
        with_occupancy.alias("occupancy_weight_ns"),
        pl.col("occupied").count().cast(pl.Int64).alias("rated_kernels"),
        pl.len().cast(pl.Int64).alias("kernels"),
    )
    per_window = sum_per_window(windows, rated, _occupied(inside))
    return per_window.with_columns(
        pl.exclude("window", "occupancy_pct").fill_null(0),
        step=steps["step"],
        window_ns=steps["length_ns"],
        kernel_ns=union_lengths(kernels, windows),
    ).select(*DERIVED.get("sm_use").table.columns)


def _occupied(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return, for each window, the integral of the summed shares of its kernels, each instant capped at 1.

    Shares are in millionths, so that a kernel's end takes away exactly what its start added: after the last
    one in a window nothing is left, and the next window begins with nothing. Ends come before starts at the
    same time, so that each moment belongs to the window in which it begins.
    """
    if kernels["occupied"].null_count() == kernels.height:
        return pl.DataFrame(schema={"window": pl.Int64} | dict.fromkeys(_OCCUPIED, pl.Float64))
    share = (pl.col("occupied") * _PPM).round().cast(pl.Int64).fill_null(0)
    changes = kernels.select(
        "window",
        "start_ns",
        "end_ns",
        occupied_ns=share,
        compute_occupied_ns=share * (pl.col("kind") == COMPUTE),
        communication_occupied_ns=share * (pl.col("kind") == COMMUNICATION),
    )
    falls = changes.select("window", pl.col("end_ns").alias("at"), -pl.col(*_OCCUPIED))
    rises = changes.select("window", pl.col("start_ns").alias("at"), *_OCCUPIED)
    ordered = pl.concat([falls, rises]).sort("at", maintain_order=True)
    length = pl.col("at").shift(-1) - pl.col("at")
    levels = ordered.select("window", pl.col(*_OCCUPIED).cum_sum().clip(0, _PPM) * length)
    return levels.group_by("window").agg(pl.col(*_OCCUPIED).sum() / _PPM)


HOST, KERNEL, OTHER = "host", "kernel", "other"

_CAUSES = {"host_wait_ns": HOST, "kernel_wait_ns": KERNEL, "other_ns": OTHER}

CONSECUTIVE_KERNEL_DELAY_NS = 30_000
"""Gap below which two kernels in the queue follow on each other: HTA's default of 30, in its microseconds."""


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
    idle_ns=("Int64", "time without any work on the device, ns"),
    host_wait_ns=("Int64", "of it, in gaps before work that was launched during the gap, ns"),
    kernel_wait_ns=("Int64", "of it, in short gaps before work that was launched earlier, ns"),
    other_ns=(
        "Int64",
        "of it, in longer gaps before work that was launched earlier or by an unknown call, ns",
    ),
)
def idle(steps: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: its idle time by cause. No rows on a run without a device.

    The work that ends a gap shows its cause, as HTA has it: the host was late if that was
    launched after the gap began. A gap that nothing ends in the trace counts as waiting
    for the host, for nothing that was launched is left to run. So does the time by which a step is longer
    than its device window.
    """
    if not origins["on_device"].any():
        return DERIVED.get("idle").table.empty()
    windows = device_windows(steps)
    busy = merge_intervals(origins)
    first = pl.Series([windows["start_ns"].min()], dtype=pl.Int64)
    last = pl.Series([windows["end_ns"].max()], dtype=pl.Int64)
    begins, ends = pl.concat([first, busy["end_ns"]]), pl.concat([busy["start_ns"], last])
    lasting = (pl.col("start_ns") < pl.col("end_ns")).any()
    ended_by = origins.group_by(end_ns="start_ns").agg(pl.col("launch_ns").min(), ended=lasting)
    gaps = _with_causes(
        pl.DataFrame({"start_ns": begins, "end_ns": ends})
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .join(ended_by, on="end_ns", how="left", maintain_order="left")
    )
    lengths = {
        name: union_lengths(keep_rows(gaps, gaps["cause"] == cause), windows)
        for name, cause in _CAUSES.items()
    }
    beyond = beyond_windows(steps)
    lengths["host_wait_ns"] += beyond
    idle_ns = union_lengths(gaps, windows) + beyond
    numbered = {"step": steps["step"], "window_ns": steps["length_ns"]}
    return pl.DataFrame({**numbered, "idle_ns": idle_ns, **lengths})


@derived(
    step=("Int64", "number of the step"),
    stream=("Int64", "stream"),
    idle_ns=("Int64", "time between the work of this stream in the step, ns"),
    host_wait_ns=("Int64", "of it, in gaps before work that was launched during the gap, ns"),
    kernel_wait_ns=("Int64", "of it, in short gaps before work that was launched earlier, ns"),
    other_ns=("Int64", "of it, in longer gaps before work that was launched earlier, ns"),
)
def stream_idle(steps: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """One stream in one step of one trace: the gaps between its work by cause [HTA].

    What lies before the first and after the last work of a stream is no gap, and other streams may
    be busy meanwhile, so these times add up to more than the device was idle.
    """
    table = DERIVED.get("stream_idle").table
    if not origins["on_device"].any():
        return table.empty()
    gaps = (
        origins.sort("stream", "start_ns", maintain_order=True)
        .select(
            "stream",
            "launch_ns",
            start_ns=pl.col("end_ns").cum_max().shift(1).over("stream"),
            end_ns="start_ns",
            ended=pl.lit(value=True),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )
    inside = clip(_with_causes(gaps), device_windows(steps))
    length = pl.col("end_ns") - pl.col("start_ns")
    causes = {name: length * (pl.col("cause") == cause) for name, cause in _CAUSES.items()}
    parts = inside.select("window", "stream", idle_ns=length, **causes)
    sums = parts.group_by("stream", "window").sum().sort("stream", "window")
    return sums.with_columns(steps["step"].gather(sums["window"])).select(*table.columns)


def _with_causes(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return each gap with its cause, and its stream if it has one."""
    late = (pl.col("launch_ns") > pl.col("start_ns")).fill_null(value=False)
    short = pl.col("end_ns") - pl.col("start_ns") < CONSECUTIVE_KERNEL_DELAY_NS
    is_ended = pl.col("ended").fill_null(value=False)
    return gaps.select(
        pl.exclude("launch_ns", "ended"),
        pl.when(late | ~is_ended)
        .then(pl.lit(HOST))
        .when(short & pl.col("launch_ns").is_not_null())
        .then(pl.lit(KERNEL))
        .otherwise(pl.lit(OTHER))
        .alias("cause"),
    )
