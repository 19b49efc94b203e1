"""Which kernels the time of each step went to."""

from __future__ import annotations

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.intervals import clipped, merged, outside
from ccl_bench.analysis.placing import step_rows
from ccl_bench.analysis.work import COMMUNICATION, FUSED
from ccl_bench.base.lazy_polars import pl
from ccl_bench.catalog.kernel_types import kernel_type


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
    counts it.
    """
    windows = device_windows(steps)
    keys = ("window", "name", "kind", "collective")
    kernels = device_work.filter("is_kernel")
    own = kernels.with_columns(step_rows(kernels, steps).alias("window")).drop_nulls("window")
    counts = own.group_by(keys).agg(pl.len().cast(pl.Int64).alias("count"))
    described = kernels.select("start_ns", "end_ns", *keys[1:])
    length = pl.col("end_ns") - pl.col("start_ns")
    times = clipped(described, windows).group_by(keys).agg(length.sum().alias("duration_ns"))
    rows = (
        counts.join(times, on=keys, how="full", coalesce=True, nulls_equal=True)
        .with_columns(pl.col("name").cast(pl.String), pl.col("count", "duration_ns").fill_null(0))
        .sort("window", "duration_ns", "name", "collective", descending=[False, True, False, False])
    )
    return rows.select(
        steps["step"].gather(rows["window"]),
        _types(rows).alias("type"),
        "name",
        "collective",
        "count",
        "duration_ns",
    )


def _types(rows: pl.DataFrame) -> pl.Series:
    """Return the type of each kernel; what is communication or fused with it is that under any name."""
    known = {name: kernel_type(name) for name in rows["name"].unique()}
    by_name = rows["name"].replace_strict(
        list(known), list(known.values()), default=None, return_dtype=pl.String
    )
    communicates = pl.when(rows["kind"].is_in([COMMUNICATION, FUSED])).then(rows["kind"])
    return pl.select(communicates.otherwise(by_name)).to_series()


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
    communicating = work.filter(pl.col("kind") == COMMUNICATION).select("start_ns", "end_ns")
    ran = outside(whole, outside(whole, communicating).select("start_ns", "end_ns"))
    inside = clipped(ran, device_windows(steps))
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    unions = merged(inside, *keys).group_by(keys).agg(length.alias("union_ns"))
    rows = unions.join(inside.group_by(keys).agg(length.alias("duration_ns")), on=keys).sort(keys)
    return rows.select(steps["step"].gather(rows["window"]), "collective", "union_ns", "duration_ns")
