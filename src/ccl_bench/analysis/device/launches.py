"""Host time in operators, and launches with their delays and queues."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import assign_window, device_windows, sum_per_window, union_lengths
from ccl_bench.analysis.names import all_matching, is_one_of
from ccl_bench.base.lazy_imports import pl

LAUNCH_CALL = (
    r"^(?:cu|cuda|hip)(?:ExtModule|Module|Ext)?"
    r"(?:Launch(?:Cooperative)?(?:MultiDevice)?Kernel|Mem(?:cpy|set)|GraphLaunch)"
)
"""Runtime and driver calls that start work on a device, in all their variants."""

GRAPH_LAUNCH = r"^(?:cu|cuda|hip)GraphLaunch"

_EARLIEST = -(1 << 62)
"""When nothing had begun yet, ns."""


@derived(
    reads={"cpu_ops": ("start_ns", "end_ns")},
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
    operators_ns=("Int64", "time in which at least one CPU thread ran an operator, ns"),
)
def host_time(steps: pl.DataFrame, cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: how long the CPU was in operators."""
    lengths = steps["length_ns"].alias("window_ns")
    return pl.DataFrame([steps["step"], lengths, union_lengths(cpu_ops, steps).alias("operators_ns")])


@derived(
    reads={"launches": ("start_ns", "end_ns", "name", "correlation")},
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
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
    call_sums = (
        assign_window(calls, steps, "launch_ns")
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
    work_counts = (
        assign_window(origins.select("start_ns", "launch_ns"), windows)
        .group_by("window")
        .agg(
            pl.len().cast(pl.Int64).alias("work"),
            pl.col("launch_ns").is_null().sum().cast(pl.Int64).alias("unlaunched"),
        )
    )
    counts = sum_per_window(windows, call_sums, work_counts).with_columns(
        pl.exclude("idle_delay_ns").fill_null(0), step=steps["step"], window_ns=steps["length_ns"]
    )
    return counts.select(*DERIVED.get("launching").table.columns)


def _fates(launches: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that start work, each with the first work it started and the state of the stream."""
    start = pl.col("start_ns")
    is_first = (start != start.shift(1)).fill_null(value=True)
    # Until when work of the stream ran: the same for pieces that start together, and the earliest time
    # there is for the first ones. `origins` are in order of their start.
    until = pl.when(is_first).then(pl.col("end_ns").cum_max().shift(1).fill_null(_EARLIEST)).forward_fill()
    started = (
        origins.with_columns(
            until_ns=pl.when(pl.col("stream").is_null()).then(_EARLIEST).otherwise(until.over("stream"))
        )
        .filter(pl.col("launch_ns").is_not_null())
        .select("correlation", "stream", "until_ns", work_start_ns="start_ns")
        .unique("correlation", keep="first", maintain_order=True)
    )
    is_launch, is_graph = all_matching(launches["name"], LAUNCH_CALL, GRAPH_LAUNCH)
    starts_work = is_launch | is_one_of(launches["correlation"], started["correlation"])
    calls = (
        launches.select("correlation", launch_ns="start_ns", launch_end_ns="end_ns", is_graph=is_graph)
        .filter((launches["correlation"] > 0) & starts_work)
        .unique("correlation", keep="first", maintain_order=True)
        .join(started, on="correlation", how="left", maintain_order="left")
        .sort("launch_ns", maintain_order=True)
    )
    is_fruitful = pl.col("work_start_ns").is_not_null()
    # Calls that wait on the stream once it is made; work that starts as a call is made waits no longer.
    begun = pl.max_horizontal("work_start_ns", "launch_ns").sort()
    begun_count = begun.search_sorted(pl.col("launch_ns"), side="right").cast(pl.Int64)
    waiting = (pl.int_range(1, pl.len() + 1) - begun_count).over("stream", is_fruitful)
    return calls.with_columns(
        stream_idle=is_fruitful & (pl.col("until_ns") <= pl.col("launch_ns")),
        queue=pl.when(is_fruitful).then(waiting),
    )
