"""What hosts do with their time, and what they did while their device was idle."""

from __future__ import annotations

from ccl_bench.analysis.by_origin import innermost_at, nested
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.launches import LAUNCH_CALL
from ccl_bench.analysis.device.markers import on_cpu
from ccl_bench.analysis.execution.operations import WAITING_CALL
from ccl_bench.analysis.intervals import clip, device_windows, merge_intervals, subtract
from ccl_bench.analysis.names import map_distinct
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.host_stalls import stall_of_call, stall_of_range

LAUNCHING = "launching"
"""The host launched work, call after call."""
RANGE, OPERATOR, UNNAMED = "named range", "operator", "unnamed pause"
"""The host launched nothing for long: in a range of the program, in an operator, or in neither."""
BLOCKING_CALL, LONG_CALL, FIRST_USE = "blocking call", "long call", "first use"
"""The host was in a call that waits for the device, in another long one, or in a kernel's first launch."""
QUEUED = "between queued work"
"""The next work was launched already, and started soon."""
WAITING_LONG = "unknown"
"""The next work was launched already, and waited for something that the trace does not show."""
ENDS, NO_HOST = "ends of the recording", "no host recorded"
"""The recording shows no call of the host then, or none at all."""

PAUSES = (RANGE, OPERATOR, UNNAMED, LONG_CALL)
"""What a host does that pauses without a reason of its own in the catalog of stalls."""

PAUSE_NS = 1_000_000
"""Time without a call above which the host pauses, ns.

Between two launches of a host that is busy with launching lie a few to some hundred microseconds of Python
and of operators; CUDA graphs and fusion shorten these and nothing else.
"""

LAUNCHER = 0.01
"""Least share of the calls with work for a thread to be one that launches; threads of loaders only copy."""

_COLUMNS = ("start_ns", "end_ns", "cause", "name")


@derived(
    reads={
        "launches": ("start_ns", "end_ns", "name", "thread", "correlation"),
        "cpu_ops": ("start_ns", "end_ns", "name", "thread"),
        "annotations": ("start_ns", "end_ns", "name", "thread", "on_device"),
    },
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    cause=(
        "String",
        "what the host did, such as `launching`, `data loading`, `blocking call` or `unnamed pause`",
    ),
    name=("String", "name of the range, operator or call; null for launching and without any"),
)
def host_activity(
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    annotations: pl.DataFrame,
    steps: pl.DataFrame,
    device_work: pl.DataFrame,
) -> pl.DataFrame:
    """One stretch of the host's time in one trace, from its first call or step to its last, without a hole.

    The threads that launch are one host. A stretch of more than 1 ms without a call is a pause, by the
    innermost range or operator that covers more than half of it. No rows without calls that launch work of a
    device.
    """
    correlations = device_work["correlation"].drop_nulls().unique().implode()
    launching = launches.filter((pl.col("correlation") > 0) & pl.col("correlation").is_in(correlations))
    counts = launching.group_by("thread").len()
    launchers = counts.filter(pl.col("len") >= LAUNCHER * pl.col("len").sum())["thread"]
    calls = launches.filter(pl.col("thread").is_in(launchers.implode())).select(
        "start_ns", "end_ns", pl.col("name").cast(pl.String), "thread"
    )
    if calls.is_empty():
        return DERIVED.get("host_activity").table.empty()
    threads = calls["thread"].unique().sort()
    # A call without length is one: a host that makes such calls does not pause.
    ordered = calls.sort("start_ns")
    reach = ordered["end_ns"].cum_max()
    begin = pl.concat([steps["start_ns"], ordered["start_ns"]]).head(1)
    end = pl.concat([reach, steps["end_ns"]]).tail(1)
    bounds = {"start_ns": pl.concat([begin, reach]), "end_ns": pl.concat([ordered["start_ns"], end])}
    gaps = pl.DataFrame(bounds).filter(pl.col("start_ns") < pl.col("end_ns"))
    is_long = pl.col("end_ns") - pl.col("start_ns") > PAUSE_NS
    short = gaps.filter(~is_long).with_columns(cause=pl.lit(LAUNCHING), name=pl.lit(None, dtype=pl.String))
    pauses = _named_pauses(gaps.filter(is_long), cpu_ops, annotations, threads, steps)
    every = pl.concat([short, pauses, _calls_apart(calls, device_work)])
    return every.filter(pl.col("start_ns") < pl.col("end_ns")).sort("start_ns").select(_COLUMNS)


def _calls_apart(calls: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """Return what the host did within calls: those that wait, long ones, and all others as launching.

    The first launch of a kernel loads its code, which later ones do not.
    """
    # The first launch of a kernel, if all its launches are known and no other one takes long.
    took_long = pl.col("launch_end_ns") - pl.col("launch_ns") > PAUSE_NS
    firsts = (
        device_work.drop_nulls("name")
        .group_by("name")
        .agg(
            pl.col("launch_ns").min(),
            known=pl.col("launch_ns").is_not_null().all(),
            long=pl.col("launch_ns").filter(took_long).n_unique(),
        )
        .filter(pl.col("known") & (pl.col("long") == 1))
    )
    name = pl.col("name")
    is_wait = name.str.contains(WAITING_CALL)
    is_long = pl.col("end_ns") - pl.col("start_ns") > PAUSE_NS
    stall = map_distinct(calls["name"], stall_of_call)
    copies = name.str.contains("Memcpy")
    is_first = pl.col("start_ns").is_in(firsts["launch_ns"].implode()) & name.str.contains(LAUNCH_CALL)
    cause = (
        pl.when(stall.is_not_null() & is_long)
        .then(pl.lit(FIRST_USE))
        .when(is_wait | (is_long & copies))
        .then(pl.lit(BLOCKING_CALL))
        .when(is_long & is_first)
        .then(pl.lit(FIRST_USE))
        .when(is_long)
        .then(pl.lit(LONG_CALL))
    )
    apart = calls.with_columns(cause=cause).drop_nulls("cause").sort("start_ns", maintain_order=True)
    # While one thread is in such a call, another one may be in the next.
    reach = pl.col("end_ns").cum_max().shift(1)
    disjoint = apart.with_columns(start_ns=pl.max_horizontal("start_ns", reach)).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    rest = subtract(merge_intervals(calls), apart).with_columns(
        cause=pl.lit(LAUNCHING), name=pl.lit(None, dtype=pl.String)
    )
    return pl.concat([disjoint.select(_COLUMNS), rest.select(_COLUMNS)])


def _named_pauses(
    pauses: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    annotations: pl.DataFrame,
    threads: pl.Series,
    steps: pl.DataFrame,
) -> pl.DataFrame:
    """Return pauses with what the host did in most of each.

    The shortest range that covers more than half of the pause names it, unless one around that is a known
    stall. Such a range holds the middle.
    """
    is_launcher = pl.col("thread").is_in(threads.implode())
    ranges = on_cpu(annotations).join(steps, on=["start_ns", "end_ns"], how="anti")
    sources = {RANGE: ranges.filter(is_launcher), OPERATOR: cpu_ops.filter(is_launcher)}
    # Names are looked up of the few ranges around pauses: moving those of all takes most of the time.
    spans = [
        source.select("start_ns", "end_ns", "thread", kind=pl.lit(kind), place=pl.int_range(pl.len()))
        for kind, source in sources.items()
    ]
    around = nested(pl.concat(spans))
    name_of = {kind: source["name"] for kind, source in sources.items()}
    middle = (pl.col("start_ns") + pl.col("end_ns")) // 2
    points = pauses.select("start_ns", "end_ns", at=middle).join(
        pl.DataFrame({"thread": threads}), how="cross"
    )
    inside = points.with_columns(row=innermost_at(points, around, "at"))
    by_pause = inside.group_by("start_ns", "end_ns", maintain_order=True).agg("row")
    rows = _with_parents(around, inside["row"])
    causes: list[str] = []
    names: list[str | None] = []
    for start, end, innermost in by_pause.iter_rows():
        covering: list[tuple[int, str, str]] = []
        stalls: list[tuple[str, str]] = []
        for row in innermost:
            while row is not None:
                range_start, range_end, kind, place, row = rows[row]
                name = name_of[kind][place]
                if 2 * (min(end, range_end) - max(start, range_start)) > end - start:
                    covering.append((range_end - range_start, kind, name))
                    stalls += [(stall, name)] if (stall := stall_of_range(name)) else []
        _, cause, pause_name = min(covering, default=(0, UNNAMED, None))
        causes.append(stalls[0][0] if stalls else cause)
        names.append(stalls[0][1] if stalls else pause_name)
    return pauses.with_columns(
        cause=pl.Series(causes, dtype=pl.String), name=pl.Series(names, dtype=pl.String)
    )


def _with_parents(
    around: pl.DataFrame, wanted: pl.Series
) -> dict[int, tuple[int, int, str, int, int | None]]:
    """Return some of `nested` ranges and all around them: start, end, kind, place and parent, by row."""
    needed, new = pl.Series(dtype=pl.Int64), wanted.drop_nulls().unique()
    while not new.is_empty():
        needed = pl.concat([needed, new])
        parents = around["parent"][new].drop_nulls().unique()
        new = parents.filter(~parents.is_in(needed.implode()))
    columns = ("start_ns", "end_ns", "kind", "place", "parent")
    return dict(zip(needed, around[needed].select(columns).iter_rows(), strict=True))


@derived(
    step=("Int64", "number of the step"),
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    cause=("String", "what the host did meanwhile, or why that is unknown"),
    name=("String", "name of the range, operator or call; null without one"),
)
def idle_causes(steps: pl.DataFrame, device_work: pl.DataFrame, host_activity: pl.DataFrame) -> pl.DataFrame:
    """One stretch of one step in which the device of one trace was idle, with its cause.

    Until the work that ends a gap was launched, the host is the cause, and what it did then. The stretches of
    a step add up to its idle time within its window on the device.
    """
    table = DERIVED.get("idle_causes").table
    if device_work.is_empty():
        return table.empty()
    windows = device_windows(steps)
    busy = merge_intervals(device_work)
    first = pl.Series([windows["start_ns"].min()], dtype=pl.Int64)
    last = pl.Series([windows["end_ns"].max()], dtype=pl.Int64)
    bounds = {"start_ns": pl.concat([first, busy["end_ns"]]), "end_ns": pl.concat([busy["start_ns"], last])}
    every_gap = pl.DataFrame(bounds)
    # What was launched before the recording was launched before all gaps.
    before = every_gap["start_ns"].min()
    launch_ns = pl.when(~pl.col("launched_before")).then("launch_end_ns").otherwise(before)
    ended_by = device_work.group_by(end_ns="start_ns").agg(launched_ns=launch_ns.min())
    has_length = pl.col("start_ns") < pl.col("end_ns")
    gaps = every_gap.join(ended_by, on="end_ns", how="left", maintain_order="left").filter(has_length)
    launched = pl.col("launched_ns")
    of_host = gaps.with_columns(end_ns=pl.min_horizontal("end_ns", launched.fill_null(pl.col("end_ns"))))
    spans = of_host.filter(has_length).select("start_ns", "end_ns")
    queued = gaps.filter(launched.is_not_null()).with_columns(
        start_ns=pl.max_horizontal("start_ns", launched)
    )
    soon = pl.col("end_ns") - pl.col("start_ns") <= PAUSE_NS
    none = pl.lit(None, dtype=pl.String).alias("name")
    waiting = queued.filter(has_length).select(
        *("start_ns", "end_ns"),
        pl.when(soon).then(pl.lit(QUEUED)).otherwise(pl.lit(WAITING_LONG)).alias("cause"),
        none,
    )
    meanwhile = clip(host_activity, spans.sort("start_ns")).select(_COLUMNS)
    beyond = pl.lit(ENDS if host_activity.height else NO_HOST)
    rest = subtract(spans, host_activity).select("start_ns", "end_ns", beyond.alias("cause"), none)
    every = pl.concat([waiting, meanwhile, rest]).sort("start_ns")
    inside = clip(every, windows)
    return inside.with_columns(step=steps["step"].gather(inside["window"])).select(*table.columns)
