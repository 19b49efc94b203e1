"""Time of each step by kind of kernel, collective and copy, and the exposed calls."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.work import COMMUNICATION, FUSED, computing_times, with_launch
from ccl_bench.analysis.intervals import (
    assign_step,
    clip,
    device_windows,
    merge_intervals,
    subtract,
    union_lengths,
)
from ccl_bench.analysis.names import map_distinct
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.kernel_types import kernel_type
from ccl_bench.schema.table import keep_rows


@derived(
    step=("Int64", "number of the step"),
    type=("String", "type of kernel, such as `gemm`"),
    name=("String", "name of the kernel"),
    collective=("String", "canonical collective; null unless the type is communication"),
    count=("Int64", "kernels that belong to the step: launched in it, else started in its device window"),
    duration_ns=("Int64", "sum of their durations inside the window, overlapping ones each for itself, ns"),
)
def kernel_time(steps: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """One kind of kernel in one step of one trace, by type and name.

    A kernel that reaches over the edge of a step gives each step its part; the step that launched it
    counts it. A kernel that no step launched has no part in any.
    """
    if device_work.is_empty():
        return DERIVED.get("kernel_time").table.empty()
    windows = device_windows(steps)
    keys = ("window", "name", "kind", "collective")
    columns = ("start_ns", "end_ns", *keys[1:])
    kernels = device_work.select(pl.col(*columns, "launch_ns", "launched_before").filter("is_kernel"))
    placed = kernels.select(*columns, window=assign_step(kernels, steps))
    step_kernels = placed.drop_nulls("window")
    counts = step_kernels.group_by(keys).agg(pl.len().cast(pl.Int64).alias("count"))
    length = pl.col("end_ns") - pl.col("start_ns")
    times = clip(step_kernels.drop("window"), windows).group_by(keys).agg(length.sum().alias("duration_ns"))
    rows = (
        counts.join(times, on=keys, how="full", coalesce=True, nulls_equal=True)
        .with_columns(pl.col("name").cast(pl.String), pl.col("count", "duration_ns").fill_null(0))
        .sort("window", "duration_ns", "name", "collective", descending=[False, True, False, False])
    )
    # Communication, fused or not, has that type under any name.
    communicates = pl.col("kind").is_in([COMMUNICATION, FUSED])
    by_name = map_distinct(rows["name"], kernel_type)
    return rows.select(
        steps["step"].gather(rows["window"]),
        pl.when(communicates).then("kind").otherwise(by_name).alias("type"),
        "name",
        "collective",
        "count",
        "duration_ns",
    )


@derived(
    step=("Int64", "number of the step"),
    collective=("String", "canonical collective"),
    union_ns=("Int64", "time in the step's device window with at least one such call, ns"),
    duration_ns=("Int64", "sum of their durations inside the window, ns"),
)
def communication_time(steps: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One collective in one step of one trace, on a device or on the CPU.

    A call of several kernels communicates while one of them runs, not in between.
    """
    keys = ("window", "collective")
    whole = calls.select("start_ns", "end_ns", "collective")
    ran = clip(whole, merge_intervals(_communicating(work)))
    inside = clip(ran.drop("window"), device_windows(steps))
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    unions = merge_intervals(inside, *keys).group_by(keys).agg(length.alias("union_ns"))
    rows = unions.join(inside.group_by(keys).agg(length.alias("duration_ns")), on=keys).sort(keys)
    return rows.select(steps["step"].gather(rows["window"]), "collective", "union_ns", "duration_ns")


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
    """One kind of copy in one step of one trace; a copy that no step launched is in none."""
    table = DERIVED.get("copies").table
    if memcpy.is_empty():
        return table.empty()
    launched = with_launch(memcpy.select("start_ns", "correlation"), launches)
    step_copies = memcpy.with_columns(window=assign_step(launched, steps)).drop_nulls("window")
    keys = ("window", "kind")
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = step_copies.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("bytes").sum(),
        pl.col("bytes").count().cast(pl.Int64).alias("sized"),
        length.filter(pl.col("bytes").is_not_null()).sum().alias("duration_ns"),
    )
    inside = clip(step_copies.select("start_ns", "end_ns", "kind"), device_windows(steps))
    times = inside.group_by(keys).agg(length.sum().alias("time_ns"))
    unions = merge_intervals(inside, *keys).group_by(keys).agg(length.sum().alias("union_ns"))
    rows = sums
    for part in (times, unions):
        rows = rows.join(part, on=keys, how="full", coalesce=True)
    rows = rows.with_columns(pl.exclude("kind").fill_null(0)).sort(keys)
    return rows.with_columns(steps["step"].gather(rows["window"])).select(*table.columns)


@derived(
    reads={"kernels": ("start_ns", "end_ns")},
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
    copy_ns=("Int64", "time with at least one copy, memory sets left out, ns"),
    exposed_ns=("Int64", "time with a copy and no kernel, ns"),
    kernel_ns=("Int64", "time with at least one kernel, ns"),
)
def copy_time(steps: pl.DataFrame, memcpy: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: its copies of all kinds together, and what of them no kernel hides."""
    windows = device_windows(steps)
    moved = memcpy.select(pl.col("start_ns", "end_ns").filter(pl.col("kind") != SET))
    ran = kernels.select("start_ns", "end_ns")
    busy = union_lengths(ran, windows)
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": steps["length_ns"],
            "copy_ns": union_lengths(moved, windows),
            "exposed_ns": union_lengths(pl.concat([moved, ran]), windows) - busy,
            "kernel_ns": busy,
        }
    )


@derived(
    step=("Int64", "number of the step"),
    call=("Int64", "number of the call in this trace"),
    collective=("String", "canonical collective"),
    start_ns=("Int64", "start of the stretch, ns"),
    end_ns=("Int64", "end of the stretch, ns"),
)
def exposed_calls(steps: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a call inside a step in which nothing computed; stretches add up to the step's exposed.

    While several calls run, the time is that of the one that started first, so that no instant
    counts twice.
    """
    reach = pl.col("end_ns").cum_max().shift(1)
    stretches = (
        calls.select("call", "collective", "start_ns", "end_ns")
        .sort("start_ns", maintain_order=True)
        .with_columns(pl.max_horizontal("start_ns", reach).alias("start_ns"))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )
    inside = clip(subtract(stretches, computing_times(work)), device_windows(steps))
    placed = inside.with_columns(steps["step"].gather(inside["window"]))
    return placed.select(*DERIVED.get("exposed_calls").table.columns)


@derived(
    step=("Int64", "number of the step"),
    call=("Int64", "number of the call in this trace"),
    start_ns=("Int64", "start of the stretch, ns"),
    end_ns=("Int64", "end of the stretch, ns"),
    is_exposed=("Boolean", "true for a stretch without compute; false for a stretch of the whole call"),
)
def call_stretches(steps: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a call inside the device window of a step, and again each part that was exposed.

    A call of several kernels communicates while one of them runs, not in between.
    """
    columns = ["call", "start_ns", "end_ns"]
    ran = clip(calls.select(columns), merge_intervals(_communicating(work)))
    inside = clip(ran.select(columns), device_windows(steps))
    placed = inside.select(steps["step"].gather(inside["window"]), *columns)
    exposed = subtract(placed, computing_times(work))
    return pl.concat(
        [
            placed.with_columns(is_exposed=pl.lit(value=False)),
            exposed.with_columns(is_exposed=pl.lit(value=True)),
        ]
    )


def _communicating(work: pl.DataFrame) -> pl.DataFrame:
    """Return the times in which a rank communicated."""
    return keep_rows(work[["start_ns", "end_ns"]], work["kind"] == COMMUNICATION)
