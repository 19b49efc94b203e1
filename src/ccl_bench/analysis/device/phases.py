"""Forward, backward, optimizer: which part of a training step each piece of work belongs to."""

from __future__ import annotations

from typing import cast

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device import markers
from ccl_bench.analysis.device.work import COMMUNICATION
from ccl_bench.analysis.intervals import (
    assign_window,
    clip,
    device_windows,
    sum_per_window,
    union_lengths,
    window_at,
)
from ccl_bench.analysis.names import is_one_of
from ccl_bench.base.lazy_imports import pl

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
ACCUMULATION, REDUCTION = "gradient_accumulation", "gradient_communication"
OTHER, UNKNOWN = "other", "unattributed"

CHECKPOINT = r"(?i)checkpoint|recompute"
"""Operators that are named after activation checkpointing, such as `CheckpointFunctionBackward`."""

PHASES = (FORWARD, BACKWARD, OPTIMIZER, ACCUMULATION, REDUCTION, OTHER, UNKNOWN)


@derived(
    reads={
        "cpu_ops": ("start_ns", "end_ns", "name", "thread", "sequence_number", "forward_thread"),
    },
    start_ns=("Int64", "start of its first operator, ns"),
    end_ns=("Int64", "end of its last operator, ns"),
    thread=("Int64", "CPU thread"),
    is_named=(
        "Boolean",
        "whether an operator around it is named after checkpointing, such as a reentrant one",
    ),
)
def recomputations(cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a CPU thread in which a node of autograd runs part of the forward pass again."""
    evaluated, checkpoints = markers.named(cpu_ops, f"^{markers.EVALUATE}", CHECKPOINT)
    again = markers.recomputing(cpu_ops, evaluated)
    opened = markers.enclosing(again, checkpoints, "start_ns")
    by_record = again.with_columns(opened.is_not_null().alias("is_named"))
    by_name = markers.before_gradients(cpu_ops, checkpoints, evaluated).with_columns(
        is_named=pl.lit(value=True)
    )
    both = again.height and by_name.height
    others = by_name.filter(union_lengths(again, by_name) == 0) if both else by_name
    return pl.concat([by_record, others.select(by_record.columns)]).sort("start_ns", "thread")


@derived(
    reads={"cpu_ops": ("start_ns", "end_ns", "name", "thread")},
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
    recomputations: pl.DataFrame,
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
    patterns = {
        "optimizer_ns": markers.OPTIMIZER,
        "backward_ns": markers.BACKWARD,
        "forward_ns": markers.FORWARD,
        "aside_ns": markers.ASIDE,
        "accumulated_ns": markers.ACCUMULATION,
        "reduced_ns": markers.REDUCTION,
        "step_ns": r"^ProfilerStep",
    }
    named = markers.named(markers.on_cpu(annotations), *patterns.values())
    ranges = dict(zip(patterns, named, strict=True))
    evaluated, accumulated, reduced = markers.named(
        cpu_ops, f"^{markers.EVALUATE}", markers.ACCUMULATE, markers.REDUCTION
    )
    backward = pl.concat([evaluated, ranges["backward_ns"]])
    # Threads that run backward nodes and nothing of the program are autograd's own.
    program = pl.concat([ranges.pop("step_ns"), ranges["optimizer_ns"], ranges["forward_ns"]])["thread"]
    threads = evaluated["thread"].unique()
    autograd = threads.filter(~is_one_of(threads, pl.concat([program, autograd_links["forward_thread"]])))
    around = ranges | {
        "backward_ns": backward,
        "accumulated_ns": pl.concat([accumulated, ranges["accumulated_ns"]]),
        "reduced_ns": pl.concat([reduced, ranges["reduced_ns"]]),
        "recomputed_ns": recomputations,
    }
    placed = origins.with_columns(
        **{name: markers.enclosing(origins, table, "launch_ns") for name, table in around.items()},
        on_autograd=is_one_of(origins["thread"], autograd),
        may_be_forward=_before_backward_ends(origins, steps, backward, ranges["optimizer_ns"])
        & is_one_of(origins["thread"], cpu_ops["thread"].unique()),
    )
    latest = pl.max_horizontal("optimizer_ns", "backward_ns", "aside_ns")
    recomputed = (pl.col("phase") == BACKWARD) & pl.col("recomputed_ns").is_not_null()
    phased = placed.with_columns(latest_ns=latest).with_columns(phase=_phase())
    return phased.select("start_ns", "end_ns", "kind", "phase", recomputed=recomputed)


def _phase() -> pl.Expr:
    latest = pl.col("latest_ns")
    inner = (pl.col("backward_ns") == latest).fill_null(value=False)
    in_backward = inner | (latest.is_null() & pl.col("on_autograd"))
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
        .when(
            pl.col("forward_ns").is_not_null()
            | (pl.col("may_be_forward").fill_null(value=False) & latest.is_null())
        )
        .then(pl.lit(FORWARD))
        .otherwise(pl.lit(OTHER))
    )


def _before_backward_ends(
    origins: pl.DataFrame, steps: pl.DataFrame, backward: pl.DataFrame, optimizer: pl.DataFrame
) -> pl.Series:
    """Mark work launched in a step before the end of its last backward work; null outside of steps."""
    edges = pl.concat(
        [
            pl.DataFrame([backward["start_ns"], backward["end_ns"].alias("backward_ns")]),
            pl.DataFrame([optimizer["start_ns"], optimizer["start_ns"].alias("optimizer_ns")]),
        ],
        how="diagonal",
    )
    by_step = assign_window(edges, steps).group_by("window")
    ends = by_step.agg(pl.col("backward_ns").max(), pl.col("optimizer_ns").min())
    bounds = sum_per_window(steps, ends)
    until = bounds.select(pl.coalesce("backward_ns", "optimizer_ns", steps["end_ns"])).to_series()
    row = window_at(origins["launch_ns"], steps).cast(pl.UInt32)
    return origins["launch_ns"] < until[row]


@derived(
    step=("Int64", "number of the step"),
    phase=("String", "one of `PHASES`"),
    window_ns=("Int64", "length of the step, ns"),
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
    if windows.is_empty():
        return DERIVED.get("phases").table.empty()
    place = pl.col("phase").cast(pl.Enum(PHASES)).to_physical().cast(pl.Int64)
    work = phased_work.select("start_ns", "end_ns", "kind", "recomputed", place=place)
    inside = clip(work, windows)
    is_local = pl.col("kind") != COMMUNICATION
    # The number of a window and phase; the phases of one window come one after the other.
    number = (pl.col("window") * len(PHASES) + pl.col("place")).alias("window")
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = (
        inside.filter(is_local)
        .group_by(number)
        .agg(length.sum().alias("duration_ns"), pl.col("start_ns").min(), pl.col("end_ns").max())
    )
    starts = assign_window(work.filter(is_local), windows)
    counts = starts.group_by(number).agg(pl.len().cast(pl.Int64).alias("count"))
    cell = pl.int_range(windows.height * len(PHASES), eager=True)
    window, place_of_cell = cell // len(PHASES), cell % len(PHASES)
    lengths = _union_lengths(inside, windows, window, place_of_cell)
    table = sum_per_window(lengths, counts, sums).with_columns(
        *lengths,
        pl.col("count", "duration_ns").fill_null(0),
        step=steps["step"][window],
        phase=pl.Series(PHASES)[place_of_cell],
        window_ns=steps["length_ns"][window],
    )
    return table.select(*DERIVED.get("phases").table.columns)


def _union_lengths(
    inside: pl.DataFrame, windows: pl.DataFrame, window: pl.Series, place: pl.Series
) -> pl.DataFrame:
    """Return the length of the union of each part of work in each window and phase, given by its place.

    The phases are laid one after the other on one line, so that one union serves all of them.
    """
    first, last = cast("tuple[int, int]", (windows["start_ns"].min(), windows["end_ns"].max()))
    shift = pl.col("place") * (last - first)
    laid = inside.with_columns(pl.col("start_ns", "end_ns") + shift).sort("start_ns")
    cells = pl.DataFrame(
        {name: windows[name][window] + place * (last - first) for name in ("start_ns", "end_ns")}
    )
    is_local = pl.col("kind") != COMMUNICATION
    parts = {
        "time_ns": laid.filter(is_local),
        "communication_ns": laid.filter(~is_local),
        "busy_ns": laid,
        "recomputed_ns": laid.filter(is_local, "recomputed"),
    }
    return pl.DataFrame({name: union_lengths(part, cells) for name, part in parts.items()})
