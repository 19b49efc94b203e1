"""Host time in operators, and launches with their delays and queues."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import assign_window, device_windows, sum_per_window, union_lengths
from ccl_bench.analysis.names import all_matching, is_one_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema.table import keep_rows

LAUNCH_CALL = (
    r"^(?:cu|cuda|hip)(?:ExtModule|Module|Ext)?"
    r"(?:Launch(?:Cooperative)?(?:MultiDevice)?Kernel|Mem(?:cpy|set)|GraphLaunch)"
)
"""Runtime and driver calls that start work on a device, in all their variants."""

GRAPH_LAUNCH = r"^(?:cu|cuda|hip)GraphLaunch"

_EARLIEST = -(1 << 62)


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
        assign_window(origins[["start_ns", "launch_ns"]], windows)
        .group_by("window")
        .agg(
            pl.len().cast(pl.Int64).alias("work"),
            pl.col("launch_ns").is_null().sum().cast(pl.Int64).alias("unlaunched"),
        )
    )
    counts = sum_per_window(windows, call_sums, work_counts).with_columns(
        pl.exclude("idle_delay_ns").fill_null(0)
    )
    counts.insert_column(0, steps["length_ns"].alias("window_ns"))
    return counts.hstack([steps["step"]])[[*DERIVED.get("launching").table.columns]]


def _fates(launches: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that start work, each with the first work it started and the state of the stream."""
    work = origins[["correlation", "stream", "start_ns"]].hstack([_busy_until(origins)])
    work.columns = ["correlation", "stream", "work_start_ns", "until_ns"]
    started = keep_rows(work, origins["launch_ns"].is_not_null())
    started = started.unique("correlation", keep="first", maintain_order=True)
    numbers = launches["correlation"]
    is_launch, is_graph = all_matching(launches["name"], LAUNCH_CALL, GRAPH_LAUNCH)
    starts_work = is_launch | is_one_of(numbers, started["correlation"])
    timed = launches[["start_ns", "end_ns", "correlation"]].hstack([is_graph.alias("is_graph")])
    timed.columns = ["launch_ns", "launch_end_ns", "correlation", "is_graph"]
    calls = (
        keep_rows(timed, (numbers > 0) & starts_work)
        .unique("correlation", keep="first", maintain_order=True)
        .join(started, on="correlation", how="left", maintain_order="left")
        .sort("launch_ns", maintain_order=True)
    )
    is_idle = pl.col("work_start_ns").is_not_null() & (pl.col("until_ns") <= pl.col("launch_ns"))
    return calls.with_columns(stream_idle=is_idle, queue=_queue())


def _busy_until(origins: pl.DataFrame) -> pl.Series:
    """Return for each piece of work until when those before it on its stream ran, ns, as `until_ns`.

    Pieces that start together have the same; the first ones on a stream, and those on none, the earliest
    time there is. `origins` are in order of their start.
    """
    start = pl.col("start_ns")
    before = pl.col("end_ns").cum_max().shift(1).fill_null(_EARLIEST)
    is_first = (start != start.shift(1)).fill_null(value=True)
    until = pl.when(is_first).then(before).forward_fill().over("stream")
    return origins.select(
        pl.when(pl.col("stream").is_null()).then(_EARLIEST).otherwise(until).alias("until_ns")
    ).to_series()


def _queue() -> pl.Expr:
    """Return the number of calls that wait on the stream of each fruitful one once it is made, by time.

    Work that starts as a call is made waits no longer.
    """
    is_fruitful = pl.col("work_start_ns").is_not_null()
    started = pl.max_horizontal("work_start_ns", "launch_ns").sort()
    over = started.search_sorted(pl.col("launch_ns"), side="right").cast(pl.Int64)
    launch_count = pl.int_range(1, pl.len() + 1)
    return pl.when(is_fruitful).then((launch_count - over).over("stream", is_fruitful))
