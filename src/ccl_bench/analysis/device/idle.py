"""Why the device was idle: waiting for the host, for the next kernel to start, or for something else."""

from __future__ import annotations

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import clipped, merged
from ccl_bench.base.lazy_polars import pl

HOST, KERNEL, OTHER = "host", "kernel", "other"

_CAUSES = ("idle_ns", "host_wait_ns", "kernel_wait_ns", "other_ns")

CONSECUTIVE_KERNEL_DELAY_NS = 30_000
"""Gap below which two kernels in the queue follow on each other: HTA's default of 30, in its microseconds."""


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    idle_ns=("Int64", "time without any work on the device, ns"),
    host_wait_ns=("Int64", "of it, in gaps after which came work that was launched during the gap, ns"),
    kernel_wait_ns=("Int64", "of it, in short gaps before work that was launched earlier, ns"),
    other_ns=(
        "Int64",
        "of it, in longer gaps before work that was launched earlier or by nobody knows whom, ns",
    ),
)
def idle(steps: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: its idle time by cause. No rows on a run without a device.

    The work that ends a gap tells its cause, as HTA has it: the host was late if that was
    launched after the gap began. A gap that nothing ends in the trace counts as waiting
    for the host, for nothing that was launched is left to run.
    """
    if not origins["on_device"].any():
        return DERIVED.get("idle").table.empty()
    windows = device_windows(steps)
    gaps = _caused(_device_gaps(origins, windows))
    return _by_cause(gaps, windows).select(steps["step"], "window_ns", *_CAUSES)


@derived(
    step=("Int64", "number of the step"),
    stream=("Int64", "stream"),
    idle_ns=("Int64", "time between the work of this stream in the step, ns"),
    host_wait_ns=("Int64", "of it, in gaps after which came work that was launched during the gap, ns"),
    kernel_wait_ns=("Int64", "of it, in short gaps before work that was launched earlier, ns"),
    other_ns=("Int64", "of it, in longer gaps before work that was launched earlier, ns"),
)
def stream_idle(steps: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """One stream in one step of one trace: the gaps between its work by cause [HTA].

    What lies before the first and after the last work of a stream is no gap, and other streams may
    be busy meanwhile, so these times add up to more than the device was idle.
    """
    if not origins["on_device"].any():
        return DERIVED.get("stream_idle").table.empty()
    windows = device_windows(steps)
    parts = []
    for stream in origins["stream"].unique().sort():
        own = origins.filter(pl.col("stream").eq_missing(pl.lit(stream, dtype=pl.Int64)))
        found = _by_cause(_caused(_stream_gaps(own)), windows)
        parts.append(found.select(steps["step"], pl.lit(stream, dtype=pl.Int64).alias("stream"), *_CAUSES))
    return pl.concat(parts).filter(pl.col("idle_ns") > 0)


def _device_gaps(origins: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals without work between the edges of all windows, each with what ended it."""
    busy = merged(origins)
    first = pl.Series([windows["start_ns"].min()], dtype=pl.Int64)
    last = pl.Series([windows["end_ns"].max()], dtype=pl.Int64)
    begins = pl.concat([first, busy["end_ns"]])
    ends = pl.concat([busy["start_ns"], last])
    lasting = (pl.col("start_ns") < pl.col("end_ns")).any()
    enders = origins.group_by("start_ns").agg(pl.col("launch_ns").min(), lasting.alias("ended"))
    return (
        pl.DataFrame({"start_ns": begins, "end_ns": ends})
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .join(enders.rename({"start_ns": "end_ns"}), on="end_ns", how="left", maintain_order="left")
        .with_columns(pl.col("ended").fill_null(value=False))
    )


def _stream_gaps(origins: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals between the work of one stream, each with what ended it."""
    ordered = origins.sort("start_ns", maintain_order=True)
    return ordered.select(
        pl.col("end_ns").cum_max().shift(1).alias("start_ns"),
        pl.col("start_ns").alias("end_ns"),
        "launch_ns",
        pl.lit(value=True).alias("ended"),
    ).filter(pl.col("start_ns") < pl.col("end_ns"))


def _caused(gaps: pl.DataFrame) -> pl.DataFrame:
    """Add to each gap its cause."""
    late = (pl.col("launch_ns") > pl.col("start_ns")).fill_null(value=False)
    short = pl.col("end_ns") - pl.col("start_ns") < CONSECUTIVE_KERNEL_DELAY_NS
    known = pl.col("launch_ns").is_not_null()
    return gaps.with_columns(
        pl.when(late | ~pl.col("ended"))
        .then(pl.lit(HOST))
        .when(short & known)
        .then(pl.lit(KERNEL))
        .otherwise(pl.lit(OTHER))
        .alias("cause")
    )


def _by_cause(gaps: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return one row a window: its length and its idle time in all and by cause."""
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = (
        clipped(gaps, windows)
        .group_by("window")
        .agg(
            length.sum().alias("idle_ns"),
            length.filter(pl.col("cause") == HOST).sum().alias("host_wait_ns"),
            length.filter(pl.col("cause") == KERNEL).sum().alias("kernel_wait_ns"),
            length.filter(pl.col("cause") == OTHER).sum().alias("other_ns"),
        )
    )
    return (
        windows.select(window=pl.int_range(pl.len(), dtype=pl.Int64), window_ns=length)
        .join(sums, on="window", how="left", maintain_order="left")
        .with_columns(pl.col(*_CAUSES).fill_null(0))
    )
