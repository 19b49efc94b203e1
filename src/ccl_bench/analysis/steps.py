"""Steps: which windows of a trace are training steps or inference iterations.

Sources in order: ranges that whoever asks names, `ProfilerStep#N` on the CPU, ranges that are numbered
as steps (NVTX, frameworks), the range `Optimizer.step#...` that repeats once a step, the communication
pattern when it repeats itself, else the whole trace as one window.
"""

from __future__ import annotations

from ccl_bench.analysis.communication import naming
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.step_choice import chosen_ranges
from ccl_bench.frames import pl

PROFILER_STEP = r"^ProfilerStep\s*#\s*(\d+)$"
NUMBERED_RANGE = (
    r"(?i)^\W*(?:(?:train(?:ing)?|global)[\W_]*)?(?:step|iteration|iter)[\W_]*(\d+)(?:\s*(?:/|of)\s*\d+)?\W*$"
)
OPTIMIZER_RANGE = "Optimizer.step#"

MIN_REPEATS = 3
"""Repetitions of the communication pattern below which it is no evidence of steps."""


@derived(
    reads={
        "kernels": ("start_ns", "end_ns", "name", "collective", "correlation"),
        "memcpy": ("start_ns", "end_ns", "correlation"),
        "launches": ("start_ns", "end_ns", "correlation"),
        "cpu_ops": ("start_ns", "end_ns"),
    },
    step=("Int64", "number of the step as recorded, else counted from 0"),
    start_ns=("Int64", "start as recorded, ns"),
    end_ns=("Int64", "end as recorded, ns"),
    device_start_ns=("Int64", "start of the step's window on the device, ns"),
    device_end_ns=("Int64", "end of the step's window on the device, ns"),
    source=("String", "how the step was found"),
)
def steps(
    annotations: pl.DataFrame,
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    marker: pl.DataFrame,
) -> pl.DataFrame:
    """One step of one trace.

    Under asynchronous launch the device works on a step after the CPU has left it. The device
    window of a step therefore ends with the last work launched in the step, and starts where
    the previous one ended or the CPU entered the step, whichever is later, so that windows of
    adjacent steps tile the trace [torch-tb-profiler, OverallParser].
    """
    marked = chosen_ranges(annotations, marker)
    if marked is None:
        marked = _marked(annotations)
    if marked is None:
        marked = _by_optimizer(annotations)
    if marked is None:
        marked = _by_communication(kernels)
    if marked is None:
        marked = _whole_trace(annotations, kernels, memcpy, launches, cpu_ops)
    device_work = pl.concat([table.select("end_ns", "correlation") for table in (kernels, memcpy)])
    return _with_device_windows(marked, device_work, launches)


def _marked(annotations: pl.DataFrame) -> pl.DataFrame | None:
    """Return the ranges that are numbered as steps; the first of each number counts."""
    named = annotations.filter(~pl.col("on_device")).with_columns(pl.col("name").cast(pl.String))
    for pattern, source in ((PROFILER_STEP, "ProfilerStep"), (NUMBERED_RANGE, "numbered range")):
        found = (
            named.with_columns(
                pl.col("name").str.extract(pattern, 1).cast(pl.Int64, strict=False).alias("step")
            )
            .drop_nulls("step")
            .sort("start_ns")
            .unique("step", keep="first", maintain_order=True)
            .select("step", "start_ns", "end_ns", pl.lit(source).alias("source"))
        )
        if found.height:
            return _disjoint(found)
    return None


def _disjoint(found: pl.DataFrame) -> pl.DataFrame:
    """Return the steps without those nested in an earlier one."""
    before = pl.col("end_ns").cum_max().shift(1)
    return found.filter((pl.col("start_ns") >= before).fill_null(value=True))


def _between(marks: pl.DataFrame, source: str) -> pl.DataFrame | None:
    """Return the windows between consecutive marks, each with `at`, ns."""
    windows = marks.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("step"),
        pl.col("at").alias("start_ns"),
        pl.col("at").shift(-1).alias("end_ns"),
        pl.lit(source).alias("source"),
    ).drop_nulls("end_ns")
    return windows if windows.height else None


def _by_optimizer(annotations: pl.DataFrame) -> pl.DataFrame | None:
    """Return the windows from the end of one optimizer step to the end of the next."""
    on_cpu = annotations.filter(~pl.col("on_device"))
    ends = on_cpu.filter(pl.col("name").cast(pl.String).str.starts_with(OPTIMIZER_RANGE))
    return _between(ends.select(pl.col("end_ns").alias("at")).sort("at"), "optimizer range")


def _by_communication(kernels: pl.DataFrame) -> pl.DataFrame | None:
    """Return the repetitions of the sequence of communication kernels, if it is periodic.

    One repetition must hold two different kernels at least: a trace of equal calls has every
    period and so tells nothing.
    """
    calls = kernels.filter(naming.kernel_collectives(kernels).is_not_null()).sort("start_ns")
    names = calls["name"].to_physical().to_list()
    period = _period(names)
    if period is None:
        return None
    marks = calls.gather_every(period).select(pl.col("start_ns").alias("at"))
    return _between(marks, "communication pattern")


def _period(names: list[int]) -> int | None:
    """Return the shortest period of a sequence that repeats it wholly, or None."""
    longest = len(names) // MIN_REPEATS
    for period in range(2, longest + 1):
        if len(names) % period == 0 and names[period:] == names[:-period] and len(set(names[:period])) > 1:
            return period
    return None


def _whole_trace(*tables: pl.DataFrame) -> pl.DataFrame:
    spans = pl.concat([table.select("start_ns", "end_ns") for table in tables])
    if spans.is_empty():
        return pl.DataFrame(
            schema={"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "source": pl.String}
        )
    return spans.select(
        pl.lit(0, dtype=pl.Int64).alias("step"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.lit("whole trace").alias("source"),
    )


def _with_device_windows(
    windows: pl.DataFrame, device_work: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """Add to each window the end of the last device work that was launched in it."""
    launched = (
        launches.select("start_ns", "correlation")
        .drop_nulls()
        .filter(pl.col("correlation") != 0)  # CUPTI counts from 1: 0 links nothing
        .unique("correlation", keep="first")
        .join(device_work.drop_nulls().rename({"end_ns": "work_end_ns"}), on="correlation")
        .sort("start_ns")
        .join_asof(
            windows.select("step", "start_ns", pl.col("end_ns").alias("until_ns")).sort("start_ns"),
            on="start_ns",
            strategy="backward",
        )
        .filter(pl.col("start_ns") < pl.col("until_ns"))
        .group_by("step")
        .agg(pl.col("work_end_ns").max())
    )
    extended = windows.sort("start_ns").join(launched, on="step", how="left", maintain_order="left")
    ends = pl.max_horizontal("end_ns", "work_end_ns").cum_max()
    return extended.with_columns(device_end_ns=ends).select(
        "step",
        "start_ns",
        "end_ns",
        pl.max_horizontal(pl.col("start_ns"), pl.col("device_end_ns").shift(1)).alias("device_start_ns"),
        pl.max_horizontal("device_end_ns", "end_ns").alias("device_end_ns"),
        "source",
    )
