"""What it costs to launch work on a device: calls, delays and queues."""

from __future__ import annotations

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.markers import matching
from ccl_bench.analysis.placing import per_window, placed
from ccl_bench.frames import pl

LAUNCH_CALL = (
    r"^(?:cu|cuda|hip)(?:ExtModule|Module|Ext)?"
    r"(?:Launch(?:Cooperative)?(?:MultiDevice)?Kernel|Mem(?:cpy|set)|GraphLaunch)"
)
"""Runtime and driver calls that start work on a device, in all their variants."""

GRAPH_LAUNCH = r"^(?:cu|cuda|hip)GraphLaunch"


@derived(
    reads={"launches": ("start_ns", "end_ns", "name", "correlation")},
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step as recorded, ns"),
    launches=("Int64", "calls that start device work, made in the step"),
    call_ns=("Int64", "time the CPU spent in those calls, ns"),
    graph_launches=("Int64", "those that launch a CUDA graph, whose parts a profiler may not see"),
    fruitless=("Int64", "those without any device work in the trace"),
    delay_ns=(
        "Int64",
        "sum over fruitful calls of the time from the call's end to the start of its work, ns",
    ),
    idle_launches=("Int64", "fruitful calls made when their stream had nothing left to do"),
    idle_delay_ns=(
        "Float64",
        "median over those of the time from the call's start to the start of its work, ns",
    ),
    queue_peak=("Int64", "most launches that waited on one stream at one time"),
    work=("Int64", "kernels, copies and sets that started in the step's device window"),
    unlaunched=("Int64", "those whose launch is not in the trace"),
)
def launching(steps: pl.DataFrame, origins: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: how its work was launched. No rows on a run without a device."""
    if not origins["on_device"].any():
        return DERIVED.get("launching").table.empty()
    calls = _fates(launches, origins)
    made = (
        placed(calls, steps.select("start_ns", "end_ns"), "launch_ns")
        .group_by("window")
        .agg(
            pl.len().cast(pl.Int64).alias("launches"),
            (pl.col("launch_end_ns") - pl.col("launch_ns")).sum().alias("call_ns"),
            pl.col("is_graph").sum().cast(pl.Int64).alias("graph_launches"),
            pl.col("work_start_ns").is_null().sum().cast(pl.Int64).alias("fruitless"),
            (pl.col("work_start_ns") - pl.col("launch_end_ns")).clip(0).sum().alias("delay_ns"),
            pl.col("stream_idle").sum().cast(pl.Int64).alias("idle_launches"),
            (pl.col("work_start_ns") - pl.col("launch_ns"))
            .filter("stream_idle")
            .median()
            .alias("idle_delay_ns"),
            pl.col("queue").max().alias("queue_peak"),
        )
    )
    windows = device_windows(steps)
    done = (
        placed(origins, windows)
        .group_by("window")
        .agg(
            pl.len().cast(pl.Int64).alias("work"),
            pl.col("launch_ns").is_null().sum().cast(pl.Int64).alias("unlaunched"),
        )
    )
    counts = per_window(windows, made, done).with_columns(pl.exclude("idle_delay_ns").fill_null(0))
    lengths = steps.select("step", window_ns=pl.col("end_ns") - pl.col("start_ns"))
    return lengths.hstack(counts).select(*DERIVED.get("launching").table.columns)


def _fates(launches: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that start work, each with the first work it started and the state of the stream."""
    first = origins.drop_nulls("launch_ns").unique("correlation", keep="first", maintain_order=True)
    started = first.select("correlation", "stream", work_start_ns="start_ns")
    calls = (
        launches.with_columns(
            is_graph=matching(launches["name"], GRAPH_LAUNCH), named=matching(launches["name"], LAUNCH_CALL)
        )
        .filter((pl.col("correlation") > 0).fill_null(value=False))
        .join(started, on="correlation", how="left", maintain_order="left")
        .filter(pl.col("named") | pl.col("work_start_ns").is_not_null())
        .unique("correlation", keep="first", maintain_order=True)
        .rename({"start_ns": "launch_ns", "end_ns": "launch_end_ns"})
        .sort("launch_ns", maintain_order=True)
    )
    return _queued(calls, origins)


def _queued(calls: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Add to each call how many calls before it still waited on its stream, and whether that was idle."""
    fruitful = calls.drop_nulls("work_start_ns")
    rises = fruitful.select("correlation", "stream", at="launch_ns", change=pl.lit(1, dtype=pl.Int64))
    falls = fruitful.select(
        pl.lit(None, dtype=pl.Int64).alias("correlation"),
        "stream",
        at=pl.max_horizontal("work_start_ns", "launch_ns"),
        change=pl.lit(-1, dtype=pl.Int64),
    )
    levels = (
        pl.concat([rises, falls])
        .sort("stream", "at", "change")
        .with_columns(pl.col("change").cum_sum().over("stream").alias("queue"))
        .drop_nulls("correlation")
    )
    until = pl.col("end_ns").cum_max().shift(1).over("stream")
    reach = (
        origins.sort("stream", "start_ns", maintain_order=True)
        .select("stream", work_start_ns="start_ns", until_ns=until)
        .unique(["stream", "work_start_ns"], keep="first", maintain_order=True)
    )
    return (
        calls.join(levels.select("correlation", "queue"), on="correlation", how="left", maintain_order="left")
        .join(reach, on=["stream", "work_start_ns"], how="left", maintain_order="left")
        .with_columns(
            stream_idle=pl.col("work_start_ns").is_not_null()
            & (pl.col("until_ns") <= pl.col("launch_ns")).fill_null(value=True)
        )
    )
