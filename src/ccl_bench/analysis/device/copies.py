"""Copies and memory sets: how much they move, how long they take, what of it nothing hides."""

from __future__ import annotations

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.device.device_work import with_launch
from ccl_bench.analysis.intervals import clipped, merged, union_lengths
from ccl_bench.analysis.placing import step_rows
from ccl_bench.base.lazy_polars import pl

SET = "memset"
"""The kind in `memcpy` that moves nothing."""


@derived(
    reads={"launches": ("start_ns", "end_ns", "thread", "correlation")},
    step=("Int64", "number of the step"),
    kind=("String", "`HtoD`, `DtoH`, `DtoD`, `PtoP`, `HtoH`, `memset` or `other`"),
    count=("Int64", "copies that belong to the step: launched in it, else started in its device window"),
    bytes=("Int64", "bytes that those of known size moved or set"),
    sized=("Int64", "those of known size"),
    duration_ns=("Int64", "sum of the durations of those of known size, ns"),
    time_ns=("Int64", "sum of durations inside the window, ns"),
    union_ns=("Int64", "time inside the window with at least one copy of this kind, ns"),
)
def copies(steps: pl.DataFrame, memcpy: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """One kind of copy in one step of one trace."""
    windows = device_windows(steps)
    length = pl.col("end_ns") - pl.col("start_ns")
    own = memcpy.with_columns(step_rows(with_launch(memcpy, launches), steps).alias("window"))
    begun = (
        own.drop_nulls("window")
        .group_by("window", "kind")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("bytes").sum(),
            pl.col("bytes").count().cast(pl.Int64).alias("sized"),
            length.filter(pl.col("bytes").is_not_null()).sum().alias("duration_ns"),
        )
    )
    inside = clipped(memcpy.select("start_ns", "end_ns", "kind"), windows)
    times = inside.group_by("window", "kind").agg(length.sum().alias("time_ns"))
    unions = merged(inside, "window", "kind").group_by("window", "kind").agg(length.sum().alias("union_ns"))
    rows = begun
    for part in (times, unions):
        rows = rows.join(part, on=["window", "kind"], how="full", coalesce=True)
    rows = rows.with_columns(pl.exclude("kind").fill_null(0)).sort("window", "kind")
    return rows.with_columns(steps["step"].gather(rows["window"]).alias("step")).select(
        "step", "kind", "count", "bytes", "sized", "duration_ns", "time_ns", "union_ns"
    )


@derived(
    reads={"kernels": ("start_ns", "end_ns")},
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    copy_ns=("Int64", "time with at least one copy, memory sets left out, ns"),
    exposed_ns=("Int64", "time with a copy and no kernel, ns"),
    kernel_ns=("Int64", "time with at least one kernel, ns"),
)
def copy_time(steps: pl.DataFrame, memcpy: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: its copies of all kinds together, and what of them no kernel hides."""
    windows = device_windows(steps)
    moved = memcpy.filter(pl.col("kind") != SET).select("start_ns", "end_ns")
    ran = kernels.select("start_ns", "end_ns")
    busy = union_lengths(ran, windows)
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": windows["end_ns"] - windows["start_ns"],
            "copy_ns": union_lengths(moved, windows),
            "exposed_ns": union_lengths(pl.concat([moved, ran]), windows) - busy,
            "kernel_ns": busy,
        }
    )
