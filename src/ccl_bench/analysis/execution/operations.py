"""Operations of one rank: calls, ranges and work, with their dependencies on that rank; and stalls."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.work import COMMUNICATION, COMPUTE, TORCH, gloo_ranges
from ccl_bench.analysis.intervals import DEVICE_RANGE, PATTERN, outermost
from ccl_bench.analysis.names import map_distinct
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.host_stalls import stall_of_call, stall_of_range

HOST, DEVICE, RANGE = "host", "device", "range"
"""Where it runs: on a thread, on a stream of a device, or on a thread of a communication library."""

CALL, WAIT, OPERATOR, ISSUE, MARK = "call", "wait", "operator", "issue", "mark"
"""Kinds of operations on the host: of the runtime, those that wait for the device, those that compute, those
that start communication, and the bounds of ranges."""

STEP = "step"
"""Name of a step that no range marks."""

WAITING_CALL = r"(?:Stream|Device|Event|Ctx)Synchronize"
"""Runtime and driver calls that return when the device has done what it was given."""

STREAM_WAIT = r"StreamWaitEvent"

_COLUMNS = ("start_ns", "end_ns", "kind", "name", "lane", "correlation")


@derived(
    reads={
        "launches": ("start_ns", "end_ns", "name", "thread", "correlation"),
        "cpu_ops": ("start_ns", "end_ns", "name", "thread"),
        "annotations": ("start_ns", "end_ns", "name", "thread", "on_device"),
    },
    operation=("Int64", "number of the operation in this trace"),
    place=("String", "`host`, `device`, or `range` for one that a communication library runs on its threads"),
    kind=("String", "`call`, `wait`, `operator`, `issue` or `mark`; of other places the kind of work"),
    name=("Categorical", "name as recorded, of a mark that of the range with `+` or `-` before it"),
    chain=("Int64", "operations of one chain run one after the other; 0 is the host's"),
    lane=("Int64", "thread or stream"),
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    call=("Int64", "number of the communication call that it is or, without one, null"),
    launcher=("Int64", "operation that launched it"),
    launched_before=("Boolean", "whether it was launched before the recording"),
    latency_ns=("Int64", "minimum time of a launch, from its start to the start of the work, ns"),
    awaited=("Int64", "operation whose end it waits for"),
    at_end=("Boolean", "whether it waits for that before its end, else before its start"),
    tier=("Int64", "certainty of this: 2 order, 3 synchronisation, 4 waiting stream, 5 inferred from time"),
)
def operations(
    launches: pl.DataFrame,
    device_work: pl.DataFrame,
    annotations: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    work: pl.DataFrame,
    origins: pl.DataFrame,
    calls: pl.DataFrame,
    steps: pl.DataFrame,
) -> pl.DataFrame:
    """One operation of one trace: what ran on the host, on the device and in communication libraries.

    The host's threads that take turns are one chain. On a run without a device, operators and ranges of
    gloo play the part of kernels, and the bounds of all ranges are operations, since the host computes
    between them; with a device only those of steps are. So the host's time before the first call of a step
    and after the last one is that of an operation too.
    """
    from ccl_bench.analysis.execution.dependencies import add_dependencies

    has_device = device_work.height > 0
    none = pl.lit(None, dtype=pl.Int64)
    if has_device:
        name = pl.col("name").cast(pl.String)
        launched = device_work["correlation"].drop_nulls().unique()
        is_launch = (pl.col("correlation") > 0) & pl.col("correlation").is_in(launched.implode())
        waits = name.str.contains(WAITING_CALL)
        host = launches.filter(is_launch.fill_null(value=False) | waits).with_columns(
            kind=pl.when(waits).then(pl.lit(WAIT)).otherwise(pl.lit(CALL)), lane="thread"
        )
        stream_waits = launches.filter(name.str.contains(STREAM_WAIT)).select("start_ns", "thread")
        away = device_work.select(
            *("start_ns", "end_ns", "kind", "name", "correlation", "launch_ns", "launched_before", "thread"),
            lane="stream",
            place=pl.lit(DEVICE),
        )
    else:
        host, stream_waits = _operators(work, cpu_ops), launches.clear()
        lane = ["start_ns", "stream"]
        names = gloo_ranges(annotations).select("start_ns", "name", stream="thread").unique(lane)
        ranges = origins.filter(pl.col("kind") == COMMUNICATION)
        away = ranges.join(names, on=lane, how="left", maintain_order="left").select(
            *("start_ns", "end_ns", "kind", "name", "launch_ns", "thread"),
            lane="stream",
            place=pl.lit(RANGE),
            correlation=none,
            launched_before=pl.lit(value=False),
        )
    marks = _marks(annotations, steps, host["lane"], every=not has_device)
    on_host = pl.concat([host.select(_COLUMNS), marks]).with_columns(place=pl.lit(HOST))
    numbers = calls.select("start_ns", "call", lane="stream").unique(
        ["start_ns", "lane"], keep="first", maintain_order=True
    )
    every = (
        pl.concat([on_host, away.join(numbers, on=["start_ns", "lane"], how="left")], how="diagonal_relaxed")
        .sort("start_ns", "end_ns", maintain_order=True)
        .with_row_index("operation")
        .with_columns(pl.col("operation").cast(pl.Int64), pl.col("launched_before").fill_null(value=False))
    )
    return add_dependencies(every, stream_waits, has_device=has_device).select(
        *DERIVED.get("operations").table.columns
    )


def _operators(work: pl.DataFrame, cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that compute on the CPU, and those that start or await communication."""
    named = cpu_ops.select("start_ns", "end_ns", "name", stream="thread").unique(
        ["start_ns", "end_ns", "stream"], keep="first", maintain_order=True
    )
    computing = (
        work.filter(pl.col("kind") == COMPUTE)
        .select("start_ns", "end_ns", "stream")
        .join(named, on=["start_ns", "end_ns", "stream"], how="left", maintain_order="left")
        .with_columns(kind=pl.lit(OPERATOR))
    )
    name = pl.col("name").cast(pl.String)
    starts = pl.any_horizontal(*[name.str.starts_with(prefix) for prefix in TORCH])
    issuing = cpu_ops.filter(starts).select("start_ns", "end_ns", "name", stream="thread")
    outer = [outermost(part) for part in issuing.partition_by("stream")] if issuing.height else [issuing]
    issues = pl.concat(outer).with_columns(kind=pl.lit(ISSUE))
    columns = ("start_ns", "end_ns", "name", "stream", "kind")
    return (
        pl.concat([issues.select(columns), computing.select(columns)])
        .rename({"stream": "lane"})
        .with_columns(correlation=pl.lit(None, dtype=pl.Int64))
    )


def _marks(annotations: pl.DataFrame, steps: pl.DataFrame, lanes: pl.Series, *, every: bool) -> pl.DataFrame:
    """Return start and end of ranges on threads of the host, `every` one or steps alone, as operations.

    Steps that no range of these threads marks are on the thread with most operations; those that the device
    shows itself are on none.
    """
    name = pl.col("name").cast(pl.String)
    is_on_lane = pl.col("thread").is_in(lanes.unique().implode()) & ~pl.col("on_device")
    ranges = annotations.filter(is_on_lane & ~name.str.starts_with("gloo:"))
    ranges = ranges.select("start_ns", "end_ns", name, "thread")
    span = ["start_ns", "end_ns"]
    shown_by_device = pl.col("source").is_in([DEVICE_RANGE, PATTERN])
    unmarked = steps.filter(~shown_by_device).join(ranges, on=span, how="anti", maintain_order="left")
    busiest = lanes.mode().sort().head(1)
    added = unmarked.join(pl.DataFrame({"thread": busiest}), how="cross")
    marked = ranges if every else ranges.join(steps, on=span, how="semi", maintain_order="left")
    marking = pl.concat([marked, added.select(*span, pl.lit(STEP).alias("name"), "thread")])
    bounds = [
        marking.select(
            start_ns=pl.col(at),
            end_ns=pl.col(at),
            kind=pl.lit(MARK),
            name=pl.concat_str(pl.lit(sign), "name").cast(pl.Categorical),
            lane="thread",
            correlation=pl.lit(None, dtype=pl.Int64),
        ).select(_COLUMNS)
        for sign, at in (("+", "start_ns"), ("-", "end_ns"))
    ]
    return pl.concat(bounds)


@derived(
    reads={
        "launches": ("start_ns", "end_ns", "name", "thread"),
        "cpu_ops": ("start_ns", "end_ns", "name", "thread"),
        "annotations": ("start_ns", "end_ns", "name", "thread", "on_device"),
    },
    kind=("String", "`data loading`, `garbage collection`, `compilation` or `module loading`"),
    name=("String", "name of the range or call"),
    thread=("Int64", "thread"),
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
)
def stalls(launches: pl.DataFrame, cpu_ops: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """One range or call in which a host of one trace does not launch work; the outermost of each kind."""
    columns = ("start_ns", "end_ns", "thread", "name")
    sources = (
        (annotations.filter(~pl.col("on_device")), stall_of_range),
        (cpu_ops, stall_of_range),
        (launches, stall_of_call),
    )
    by_source = [
        source.select(*columns, kind=map_distinct(source["name"], of)).drop_nulls("kind")
        for source, of in sources
    ]
    intervals = pl.concat(each.with_columns(pl.col("name").cast(pl.String)) for each in by_source)
    parts = [outermost(part) for part in intervals.partition_by("kind", "thread", maintain_order=True)]
    whole = pl.concat(parts) if parts else intervals
    return whole.sort("start_ns").select(*DERIVED.get("stalls").table.columns)
