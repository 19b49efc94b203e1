"""Forward, backward, optimizer: which part of a training step each piece of work belongs to."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.device import markers
from ccl_bench.analysis.device.work import COMMUNICATION
from ccl_bench.analysis.intervals import assign_window, clip, device_windows, merge_intervals
from ccl_bench.base.lazy_imports import pl

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
ACCUMULATION, REDUCTION = "gradient_accumulation", "gradient_communication"
OTHER, UNKNOWN = "other", "unattributed"

PHASES = (FORWARD, BACKWARD, OPTIMIZER, ACCUMULATION, REDUCTION, OTHER, UNKNOWN)


@derived(
    reads={
        "cpu_ops": ("start_ns", "end_ns", "name", "thread", "sequence_number", "forward_thread"),
    },
    start_ns=("Int64", "start of the work, ns"),
    end_ns=("Int64", "end of the work, ns"),
    kind=("String", "`compute`, `communication` or `memory`"),
    phase=("String", "one of `PHASES`"),
    recomputed=("Boolean", "whether it repeats part of the forward pass for the backward pass"),
)
def phased_work(
    origins: pl.DataFrame,
    steps: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    annotations: pl.DataFrame,
    autograd_links: pl.DataFrame,
) -> pl.DataFrame:
    """One interval of work with its phase, from where and when it was launched.

    - optimizer, if launched inside `Optimizer.step#...` or a range of that meaning;
    - backward, if inside a node of autograd or a range of that meaning, or on a thread of
      autograd's own; of an optimizer and a backward range around it the inner one counts;
    - of the backward pass, apart: what `AccumulateGrad` launches is gradient accumulation, and
      communication in it, like DDP's buckets and FSDP's reduction, gradient communication;
    - forward, if inside a range of that meaning, or else launched in a step before its backward
      pass is over (or, without one, before its optimizer), except for data loading and zero_grad;
    - other, if none of these; unattributed, if its launch is not in the trace.
    """
    ranges = markers.on_cpu(annotations)
    evaluated = markers.named(cpu_ops, f"^{markers.EVALUATE}")
    backward = pl.concat([evaluated, markers.named(ranges, markers.BACKWARD)])
    optimizer = markers.named(ranges, markers.OPTIMIZER)
    around = {
        "optimizer_ns": optimizer,
        "backward_ns": backward,
        "forward_ns": markers.named(ranges, markers.FORWARD),
        "aside_ns": markers.named(ranges, markers.ASIDE),
        "accumulated_ns": pl.concat(
            [markers.named(cpu_ops, markers.ACCUMULATE), markers.named(ranges, markers.ACCUMULATION)]
        ),
        "reduced_ns": pl.concat(
            [markers.named(cpu_ops, markers.REDUCTION), markers.named(ranges, markers.REDUCTION)]
        ),
        "recomputed_ns": markers.recomputing(cpu_ops),
    }
    opened = [markers.enclosing(origins, table, "launch_ns").alias(name) for name, table in around.items()]
    autograd = _autograd_threads(evaluated, ranges, autograd_links)
    return origins.with_columns(
        *opened,
        on_autograd=origins["thread"].is_in(autograd.implode()).fill_null(value=False),
        may_be_forward=_before_backward_ends(origins, steps, backward, optimizer)
        & origins["thread"].is_in(cpu_ops["thread"].unique().implode()).fill_null(value=False),
    ).select(
        "start_ns",
        "end_ns",
        "kind",
        _phase().alias("phase"),
        recomputed=(_phase() == BACKWARD) & pl.col("recomputed_ns").is_not_null(),
    )


def _phase() -> pl.Expr:
    latest = pl.max_horizontal("optimizer_ns", "backward_ns", "aside_ns")
    inner_backward = (pl.col("backward_ns") == latest).fill_null(value=False)
    in_backward = inner_backward | (latest.is_null() & pl.col("on_autograd"))
    reduces = pl.col("reduced_ns").is_not_null() | (
        pl.col("accumulated_ns").is_not_null() & (pl.col("kind") == COMMUNICATION)
    )
    return (
        pl.when(pl.col("launch_ns").is_null())
        .then(pl.lit(UNKNOWN))
        .when((in_backward | pl.col("on_autograd")) & reduces)
        .then(pl.lit(REDUCTION))
        .when(in_backward & pl.col("accumulated_ns").is_not_null())
        .then(pl.lit(ACCUMULATION))
        .when(in_backward)
        .then(pl.lit(BACKWARD))
        .when((pl.col("optimizer_ns") == latest).fill_null(value=False))
        .then(pl.lit(OPTIMIZER))
        .when(pl.col("forward_ns").is_not_null() | (pl.col("may_be_forward") & latest.is_null()))
        .then(pl.lit(FORWARD))
        .otherwise(pl.lit(OTHER))
    )


def _autograd_threads(evaluated: pl.DataFrame, ranges: pl.DataFrame, links: pl.DataFrame) -> pl.Series:
    """Return the threads that run backward nodes and nothing of the program's own."""
    own = [markers.named(ranges, pattern)["thread"] for pattern in (markers.OPTIMIZER, markers.FORWARD)]
    steps = markers.named(ranges, r"^ProfilerStep")["thread"]
    program = pl.concat([*own, steps, links["forward_thread"]]).unique()
    threads = evaluated["thread"].unique()
    return threads.filter(~threads.is_in(program.implode()))


def _before_backward_ends(
    origins: pl.DataFrame, steps: pl.DataFrame, backward: pl.DataFrame, optimizer: pl.DataFrame
) -> pl.Series:
    """Mark what was launched in a step before the end of its last backward work."""
    windows = steps.select("start_ns", "end_ns")
    ends = (
        assign_window(backward, windows).group_by("window").agg(pl.col("end_ns").max().alias("backward_ns"))
    )
    begins = (
        assign_window(optimizer, windows)
        .group_by("window")
        .agg(pl.col("start_ns").min().alias("optimizer_ns"))
    )
    until = (
        windows.with_columns(window=pl.int_range(pl.len(), dtype=pl.Int64))
        .join(ends, on="window", how="left")
        .join(begins, on="window", how="left")
        .select("window", until=pl.coalesce("backward_ns", "optimizer_ns", "end_ns"))
    )
    launched = assign_window(origins.select("launch_ns").with_row_index("row"), windows, "launch_ns")
    early = launched.join(until, on="window").filter(pl.col("launch_ns") < pl.col("until"))["row"]
    return origins.with_row_index("row")["row"].is_in(early.implode())


@derived(
    step=("Int64", "number of the step"),
    phase=("String", "one of `PHASES`"),
    window_ns=("Int64", "length of the step's device window, ns"),
    count=("Int64", "kernels, copies and operators, communication left out"),
    time_ns=("Int64", "time in which the phase computed or copied, ns"),
    duration_ns=("Int64", "sum of the durations of that, overlapping work each for itself, ns"),
    communication_ns=("Int64", "time in which communication that the phase launched ran, ns"),
    busy_ns=("Int64", "time in which anything of the phase ran, ns"),
    recomputed_ns=("Int64", "of `time_ns`, time that repeats the forward pass, ns"),
    start_ns=(
        "Int64",
        "start of the first computing or copying of the phase in the step, ns; null without any",
    ),
    end_ns=("Int64", "end of the last computing or copying of the phase in the step, ns; null without any"),
)
def phases(steps: pl.DataFrame, phased_work: pl.DataFrame) -> pl.DataFrame:
    """One phase in one step of one trace; every phase has a row in every step."""
    windows = device_windows(steps)
    calls = pl.col("kind") == COMMUNICATION
    inside = clip(phased_work, windows)
    done = inside.filter(~calls)
    keys = ("window", "phase")
    length = pl.col("end_ns") - pl.col("start_ns")
    counts = (
        assign_window(phased_work.filter(~calls), windows)
        .group_by(keys)
        .agg(pl.len().cast(pl.Int64).alias("count"))
    )
    sums = done.group_by(keys).agg(
        length.sum().alias("duration_ns"), pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    parts = {
        "time_ns": done,
        "communication_ns": inside.filter(calls),
        "busy_ns": inside,
        "recomputed_ns": done.filter("recomputed"),
    }
    rows = pl.DataFrame({"window": range(windows.height)}, schema={"window": pl.Int64}).join(
        pl.DataFrame({"phase": PHASES}), how="cross"
    )
    tables = [counts, sums, *(_lengths(part, name) for name, part in parts.items())]
    for table in tables:
        rows = rows.join(table, on=keys, how="left", maintain_order="left")
    numbers, window = steps["step"].gather(rows["window"]), (windows["end_ns"] - windows["start_ns"])
    return rows.with_columns(pl.exclude("phase", "start_ns", "end_ns").fill_null(0)).select(
        numbers,
        "phase",
        window.gather(rows["window"]).alias("window_ns"),
        "count",
        "time_ns",
        "duration_ns",
        "communication_ns",
        "busy_ns",
        "recomputed_ns",
        "start_ns",
        "end_ns",
    )


def _lengths(parts: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the length of the union of `parts` in each window and phase, as `name`."""
    whole = merge_intervals(parts, "window", "phase").group_by("window", "phase")
    return whole.agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias(name))
