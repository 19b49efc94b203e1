"""The tables of steps: their windows, their lengths, and which of them a truncated file holds whole."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.device.work import COMMUNICATION, COMPUTE, FUSED, gloo_ranges
from ccl_bench.analysis.intervals import (
    are_of_device,
    assign_step,
    assign_window,
    device_windows,
    sum_per_window,
    window_at,
)
from ccl_bench.analysis.names import is_one_of
from ccl_bench.analysis.steps import marks
from ccl_bench.analysis.steps.marks import chosen_ranges
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import ROUNDING_NS
from ccl_bench.result import WHOLE_TRACE


@derived(
    across_ranks=True,
    iteration=("Int64", "number of the recording window, where there are several"),
    rank=("Int64", "rank; null if the source does not distinguish ranks"),
    step=("Int64", "number of the step"),
    duration_ns=("Int64", "length of the step, ns"),
    host_ns=("Int64", "length of the range that marks it on the host, ns; null in a side file"),
    source=("String", "file, or how the step was found in the trace"),
)
def step_times(steps: pl.DataFrame) -> pl.DataFrame:
    """One step on one rank: how long it took, from a side file where the run has one."""
    length = pl.col("length_ns").alias("duration_ns")
    host = (pl.col("end_ns") - pl.col("start_ns")).alias("host_ns")
    return steps.select("iteration", "rank", "step", length, host, "source")


def slowest(step_times: pl.DataFrame) -> pl.DataFrame:
    """Return one row a step: the duration on the slowest rank, in order."""
    return (
        step_times.group_by("iteration", "step", maintain_order=True)
        .agg(
            pl.col("duration_ns").max(),
            pl.col("rank").get(pl.col("duration_ns").arg_max()).alias("slowest_rank"),
            pl.col("rank").n_unique().alias("ranks"),
        )
        .sort("iteration", "step", nulls_last=False)
    )


def mean_step_ns(step_times: pl.DataFrame) -> float:
    """Return the length of a step of a run, ns: the mean over steps of the slowest rank's. Needs a step.

    Every metric, verdict, report, comparison and forecast has the length of a step from here.
    """
    return float(slowest(step_times)["duration_ns"].mean())  # type: ignore[arg-type]  # of numbers it is one


def host_range_ns(step_times: pl.DataFrame) -> float | None:
    """Return the mean over steps of the longest range on the host, ns; None for a side file."""
    longest = step_times.group_by("iteration", "step", maintain_order=True).agg(pl.col("host_ns").max())
    mean = longest["host_ns"].mean()
    return mean if isinstance(mean, float) else None


@derived(
    reads={"launches": ("start_ns", "end_ns"), "cpu_ops": ("start_ns", "end_ns", "name", "thread")},
    step=("Int64", "number of the step as recorded, counted on where it begins again, else from 0"),
    start_ns=("Int64", "start as recorded, ns"),
    end_ns=("Int64", "end as recorded, ns"),
    device_start_ns=("Int64", "start of the step's window on the device, ns"),
    device_end_ns=("Int64", "end of the step's window on the device, ns"),
    length_ns=(
        "Int64",
        "length of the step: its window on the device, and more if the host sets the pace, ns",
    ),
    queued_until_ns=(
        "Int64",
        "until when the device ran what no step had launched, ns; null if nothing was queued before the step",
    ),
    source=("String", "how the step was found"),
    cuts_operator=("Boolean", "whether the range that marks it begins within an operator of its thread"),
    calls=("Int64", "communication calls that belong to the step"),
    work=("Int64", "kernels, copies and sets of a device that belong to the step"),
    unlaunched=("Int64", "those whose launch is not in the trace"),
)
def steps(
    annotations: pl.DataFrame,
    device_work: pl.DataFrame,
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    marker: pl.DataFrame,
    starting_calls: pl.DataFrame,
) -> pl.DataFrame:
    """One step of one trace.

    Under asynchronous launch the device works on a step after the CPU has left it. The device
    window of a step therefore ends with the last work launched in the step. It starts where
    the previous one ended, where what was launched outside of the steps before it ended, or where the
    CPU entered the step, whichever is latest, so that windows of adjacent steps tile the trace and none
    holds what another one launched [torch-tb-profiler, OverallParser].

    A step is as long as its device window, the time from the completion of the step before to its own. A host
    that takes longer sets the pace: the device idles until it is as far. Where the windows of a trace are
    shorter together than the ranges on the host, each step is longer by its part of what lacks.
    """
    spans = chosen_ranges(annotations, marker)
    if spans is None:
        spans = marks.marked_steps(annotations, cpu_ops, device_work)
    if spans is None:
        spans = marks.whole_trace(annotations, device_work, launches, cpu_ops)
    windows = _with_device_windows(_run_to_their_end(spans.sort("start_ns"), starting_calls), device_work)
    amid = _amid_operators(windows, annotations, cpu_ops)
    return windows.with_columns(amid, *_counts(windows, device_work, gloo_ranges(annotations)))


def _amid_operators(windows: pl.DataFrame, annotations: pl.DataFrame, cpu_ops: pl.DataFrame) -> pl.Series:
    """Return for each step whether an operator of its thread begins before its range and ends within it.

    What one thread does lies inside or outside of a range. Steps that no range of one thread marks cannot be.
    """
    none = pl.Series("cuts_operator", [False]).new_from_index(0, windows.height)
    is_mark = is_one_of(annotations["start_ns"], windows["start_ns"]) & ~annotations["on_device"]
    threads = annotations["thread"].filter(is_mark).drop_nulls().mode()
    if threads.is_empty() or are_of_device(windows):
        return none
    of_thread = pl.col("start_ns", "end_ns").filter(pl.col("thread") == threads[0])
    operators = cpu_ops.select(of_thread).sort("start_ns")
    earlier = operators["start_ns"].search_sorted(windows["start_ns"], side="left").cast(pl.Int64)
    reach = pl.concat([pl.Series([None], dtype=pl.Int64), operators["end_ns"].cum_max()]).gather(earlier)
    return (reach > windows["start_ns"] + ROUNDING_NS).fill_null(value=False).alias(none.name)


FEW_QUEUED = 0.01
"""Share of a step's launches whose work may lack at the end of a recording: calls that fail start none."""


def _run_to_their_end(spans: pl.DataFrame, starting_calls: pl.DataFrame) -> pl.DataFrame:
    """Return the steps without the last ones, of which work was still queued when the recording ended.

    A step that is all there is stays: its numbers are refused where they would be wrong.
    """
    queued = starting_calls.filter("is_behind")
    if queued.is_empty() or are_of_device(spans):
        return spans
    counts = (
        assign_window(calls, spans).group_by("window").agg(pl.len().cast(pl.Int64).alias(name))
        for calls, name in ((starting_calls, "calls"), (queued, "queued"))
    )
    counted_calls = sum_per_window(spans, *counts).fill_null(0)
    has_run = counted_calls.select(pl.col("queued") <= FEW_QUEUED * pl.col("calls")).to_series()
    return spans.filter(has_run) if has_run.any() else spans


QUEUED_NS = 1_000_000
"""Time from the return of a launch to the start of a recording's first work above which that was queued.

A launch on an idle device starts its work within some ten microseconds; behind unrecorded work it waits for
as long as that runs.
"""


def _with_device_windows(windows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Add to each step its window on the device; a whole trace and a pattern of kernels are such windows."""
    placed = work.select(
        *("start_ns", _possible_ends(), "launch_ns", "launched_before", "kind"),
        window=window_at(work["launch_ns"], windows),
    )
    unrecorded = _behind_unrecorded(work, windows)
    device_length = pl.col("device_end_ns") - pl.col("device_start_ns")
    if are_of_device(windows):
        is_whole = windows["source"] == WHOLE_TRACE
        begins = pl.max_horizontal("start_ns", "queued_until_ns")
        of_device = windows.with_columns(queued_until_ns=unrecorded.set(~is_whole, None)).with_columns(
            device_start_ns=begins, device_end_ns="end_ns"
        )
        return of_device.with_columns(length_ns=device_length).select(_WINDOW)
    # Until when work of no step ran that was launched before each window.
    is_known = pl.col("launched_before") | pl.col("launch_ns").is_not_null()
    outside = placed.filter(pl.col("window").is_null() & is_known).sort("launch_ns", nulls_last=False)
    launches = outside["launch_ns"].drop_nulls()
    earlier = outside.height - launches.len() + launches.search_sorted(windows["start_ns"]).cast(pl.Int64)
    ahead = outside["end_ns"].cum_max().extend_constant(None, 1).gather(earlier - 1)
    # A call that waits for its peers may begin long before the step before is complete.
    computes = pl.col("kind").is_in([COMPUTE, FUSED])
    first = pl.when(computes).then("start_ns").min().alias("first_ns")
    by_window = placed.drop_nulls("window").group_by("window")
    reach = sum_per_window(windows, by_window.agg(first, pl.col("end_ns").max().alias("last_ns")))
    ends = pl.max_horizontal("end_ns", "last_ns").cum_max()
    has_queued = pl.col("last_ns").is_not_null() & pl.col("queued_until_ns").is_not_null()
    begins = pl.max_horizontal(
        "start_ns", ends.shift(1), pl.when(has_queued).then(pl.min_horizontal("first_ns", "queued_until_ns"))
    )
    # What all windows lack together to be as long as the host's ranges is divided equally: nothing shows in
    # which steps a device waits for a host whose queue it works off.
    lacking = (pl.col("end_ns") - pl.col("start_ns") - device_length).sum().clip(lower_bound=0)
    remainder = (pl.int_range(pl.len()) < lacking % pl.len()).cast(pl.Int64)
    return (
        windows.with_columns(*reach, queued_until_ns=pl.max_horizontal(ahead, unrecorded))
        .with_columns(device_start_ns=begins, device_end_ns=ends)
        .with_columns(length_ns=device_length + lacking // pl.len() + remainder)
        .select(_WINDOW)
    )


def _possible_ends() -> pl.Expr:
    """Return the ends of work in order of start, but of impossible ones the next start on the stream.

    A stream runs one piece after the other. Neighbours may overlap by the error of the recorder's clock, but
    a record that goes on 1 ms longer has a damaged time, and would make its step as long. The readers leave
    out only work that ends after later work of its stream.
    """
    following = pl.col("start_ns").shift(-1).over("stream")
    is_impossible = (pl.col("end_ns") - following > QUEUED_NS) & pl.col("stream").is_not_null()
    return pl.when(is_impossible).then(following).otherwise("end_ns").alias("end_ns")


_WINDOW = (
    *("step", "start_ns", "end_ns", "device_start_ns", "device_end_ns", "length_ns", "queued_until_ns"),
    "source",
)


def _behind_unrecorded(work: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return until when the device ran work that no trace shows, for the window that waited for it.

    The first kernel of a recording that begins amid saturated work starts when all that was queued before
    the recording has run, long after its own launch, or after the recording began if it was launched before.
    """
    nothing = pl.Series("unrecorded", [None], dtype=pl.Int64).new_from_index(0, windows.height)
    kernels = work.select(pl.col("start_ns", "launch_end_ns", "launched_before").filter("is_kernel").head(1))
    if kernels.is_empty() or windows.is_empty():
        return nothing
    start, launched, launched_before = kernels.row(0)
    launched = windows["start_ns"][0] if launched_before else launched
    if launched is None:
        return nothing
    ended = work["end_ns"].filter((work["start_ns"] < start) & (work["end_ns"] <= start)).max()
    if start - max(launched, ended if isinstance(ended, int) else launched) <= QUEUED_NS:
        return nothing
    place = max(0, int(windows["start_ns"].search_sorted(launched, side="right")) - 1)
    return nothing.scatter(place, start)


def _counts(steps: pl.DataFrame, work: pl.DataFrame, host_calls: pl.DataFrame) -> pl.DataFrame:
    """Return the amount of work in each step; without a device the calls are those of the CPU."""
    if work.is_empty():
        row = window_at(host_calls["start_ns"], device_windows(steps))
        pieces = pl.DataFrame({"row": row}).with_columns(is_call=True, unlaunched=False, counts=False)
    else:
        # All that one operator launches may be one call, which counts once.
        is_first = pl.col("call_ns").is_null() | pl.struct("thread", "call_ns").is_first_distinct()
        pieces = work.select(
            row=assign_step(work, steps),
            is_call=(pl.col("kind") == COMMUNICATION) & is_first,
            unlaunched=pl.col("launch_ns").is_null(),
            counts=True,
        )
    sums = (
        pieces.drop_nulls("row")
        .group_by(window="row")
        .agg(
            pl.col("is_call").sum().cast(pl.Int64).alias("calls"),
            pl.col("counts").sum().cast(pl.Int64).alias("work"),
            pl.col("unlaunched").sum().cast(pl.Int64),
        )
    )
    return sum_per_window(steps, sums).select(pl.col("calls", "work", "unlaunched").fill_null(0))


@derived(
    step=("Int64", "number of the step"),
    is_whole=("Boolean", "whether everything of it must be in a file that was cut off"),
)
def whole_steps(
    steps: pl.DataFrame,
    kernels: pl.DataFrame,
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    annotations: pl.DataFrame,
    collectives: pl.DataFrame,
    devices: pl.DataFrame,
) -> pl.DataFrame:
    """One step of one trace, and whether a file that was cut off can lack anything of it.

    Profilers write the CPU's part first and the device's after it, each in order of time: a step is whole
    once all of these go on beyond its end. A file that was cut before the device's part holds no
    whole step. On a CPU alone the threads follow each other, and one may be missing altogether:
    there a step must also hold a `gloo:*` range for each operator that starts one.
    """
    parts = [table for table in (cpu_ops, launches, kernels) if table.height]
    reached = min((int(table["start_ns"].max()) for table in parts), default=0)  # type: ignore[arg-type]
    goes_on = steps.select(pl.max_horizontal("end_ns", "device_end_ns") <= reached).to_series()
    if kernels.is_empty() and devices.height:
        goes_on = pl.Series([False] * steps.height, dtype=pl.Boolean)
    elif kernels.is_empty():
        sources = [collectives.filter(pl.col("source") == source) for source in ("host", "op")]
        starting = next((rows for rows in sources if rows.height), sources[-1])
        counts = (
            assign_window(table, steps).group_by("window").agg(pl.len().cast(pl.Int64).alias(name))
            for table, name in ((gloo_ranges(annotations), "ran"), (starting, "started"))
        )
        by_step = sum_per_window(steps, *counts).fill_null(0)
        goes_on &= by_step["ran"] == by_step["started"]
    return pl.DataFrame({"step": steps["step"], "is_whole": goes_on})
