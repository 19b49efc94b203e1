"""Pipeline bubbles: the time that a stage waits for its neighbours, and the theoretical value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.groups import stages_of
from ccl_bench.analysis.communication.matching import point_to_point
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.phases import BACKWARD, FORWARD
from ccl_bench.analysis.device.work import computing_times
from ccl_bench.analysis.intervals import (
    beyond_windows,
    clip,
    device_windows,
    merge_intervals,
    subtract,
    union_lengths,
)
from ccl_bench.analysis.names import is_one_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema.table import keep_rows

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

_FLAT = {"1f1b", "gpipe", "schedule1f1b", "schedulegpipe"}
_INTERLEAVED = {"interleaved1f1b", "interleaved", "scheduleinterleaved1f1b"}


def theoretical_bubble_fraction(facts: Facts) -> tuple[float, str] | None:
    """Return the bubble's share of an even step without transfer cost, and its formula.

    None if the card states no schedule, no number of microbatches, or a schedule without a
    closed formula. p stages, m microbatches, v model chunks on one rank [arXiv 2104.04473].
    """
    if not (facts.pp and facts.microbatches and facts.pp_schedule):
        return None
    stages, microbatches = facts.pp.value, facts.microbatches.value
    schedule = facts.pp_schedule.value.replace("-", "").replace("_", "").lower()
    if schedule in _FLAT:
        return (stages - 1) / (microbatches + stages - 1), "(p-1)/(m+p-1)"
    if schedule in _INTERLEAVED and facts.virtual_stages:
        chunks = facts.virtual_stages.value
        return (stages - 1) / (chunks * microbatches + stages - 1), "(p-1)/(v*m+p-1)"
    return None


WARM_UP, STEADY, COOL_DOWN, WHOLE = "warm-up", "steady", "cool-down", "whole"


@derived(
    step=("Int64", "step"),
    part=("String", "`warm-up`, `steady` or `cool-down`; `whole` where the trace does not separate them"),
    start_ns=("Int64", "start of the part, ns"),
    end_ns=("Int64", "end of the part, ns"),
)
def stage_parts(steps: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """One part of a step's device window: parts tile it, and may be empty.

    Warm-up lasts until the first backward work starts, cool-down begins when the last forward work has
    ended. Where that is earlier, as for a stage that runs all forward passes first, nothing is steady.
    """
    windows = steps[["step"]].hstack(device_windows(steps))
    backward = _times_of(phases, BACKWARD, "start_ns", "backward_ns")
    forward = _times_of(phases, FORWARD, "end_ns", "forward_ns")
    first = pl.col("backward_ns").clip(pl.col("start_ns"), pl.col("end_ns")).alias("first")
    bounds = (
        windows.join(backward, on="step", how="left", maintain_order="left")
        .join(forward, on="step", how="left", maintain_order="left")
        .with_columns(
            first,
            known=pl.col("backward_ns").is_not_null() & pl.col("forward_ns").is_not_null(),
            last=pl.max_horizontal(first, pl.col("forward_ns").clip(upper_bound=pl.col("end_ns"))),
        )
    )
    has_both = bounds["known"]
    of_parts = (
        (WHOLE, "start_ns", "end_ns", ~has_both),
        (WARM_UP, "start_ns", "first", has_both),
        (STEADY, "first", "last", has_both),
        (COOL_DOWN, "last", "end_ns", has_both),
    )
    parts = []
    for name, start, end, has_part in of_parts:
        rows = keep_rows(bounds[["step", start, end]], has_part)
        rows.columns = ["step", "start_ns", "end_ns"]
        rows.insert_column(1, pl.Series("part", [name]).new_from_index(0, rows.height))
        parts.append(rows)
    return pl.concat(parts).sort("start_ns", "end_ns", maintain_order=True)


def _times_of(phases: pl.DataFrame, phase: str, time: str, name: str) -> pl.DataFrame:
    """Return the steps that have a phase, with one of its times under another name."""
    rows = keep_rows(phases[["step", time]], phases["phase"] == phase)
    rows.columns = ["step", name]
    return rows


@derived(
    step=("Int64", "step"),
    part=("String", "part of the step"),
    window_ns=("Int64", "length of the part; those of a step add up to its length, ns"),
    compute_ns=("Int64", "time with compute, ns"),
    exposed_collectives_ns=("Int64", "time with collectives, messages left out, and no compute, ns"),
    exposed_messages_ns=("Int64", "time with messages between two ranks and nothing else, ns"),
)
def stage_time(
    steps: pl.DataFrame, stage_parts: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """One part of a step of one trace, with messages between two ranks apart from other communication.

    The time by which a step is longer than its device window lies before it, in the first part.
    """
    compute, spans, is_message = computing_times(work), calls[["start_ns", "end_ns"]], _are_messages(calls)
    computing = union_lengths(compute, stage_parts)
    busy = union_lengths(pl.concat([compute, keep_rows(spans, ~is_message)]), stage_parts)
    everything = union_lengths(pl.concat([compute, spans]), stage_parts) if is_message.any() else busy
    beyond = steps[["step"]].hstack([beyond_windows(steps)])
    parts = stage_parts.join(beyond, on="step", how="left", maintain_order="left")
    before = pl.when(pl.col("step").is_first_distinct()).then("beyond_ns").otherwise(0)
    return parts.select(
        "step",
        "part",
        (pl.col("end_ns") - pl.col("start_ns") + before).alias("window_ns"),
        computing.alias("compute_ns"),
        (busy - computing).alias("exposed_collectives_ns"),
        (everything - busy).alias("exposed_messages_ns"),
    )


def _are_messages(calls: pl.DataFrame) -> pl.Series:
    """Return a mask of the calls that are messages between two ranks."""
    return is_one_of(calls["collective"], pl.Series(point_to_point(), dtype=pl.String))


@derived(
    step=("Int64", "step"),
    part=("String", "part of the step"),
    call=("Int64", "number of the call in this trace"),
    start_ns=("Int64", "start of the exposed stretch, ns"),
    end_ns=("Int64", "end of the exposed stretch, ns"),
    call_end_ns=("Int64", "end of the whole call, ns"),
)
def exposed_messages(stage_parts: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a message during which this rank neither computed nor was in a collective."""
    is_message = _are_messages(calls)
    if not is_message.any():
        return DERIVED.get("exposed_messages").table.empty()
    spans = calls[["start_ns", "end_ns", "call"]].hstack([calls["end_ns"].alias("call_end_ns")])
    collectives = keep_rows(calls[["start_ns", "end_ns"]], ~is_message)
    exposed = subtract(keep_rows(spans, is_message), pl.concat([computing_times(work), collectives]))
    inside = clip(exposed, stage_parts)
    place = stage_parts[["step", "part"]][inside["window"]]
    return inside.hstack(place)[[*DERIVED.get("exposed_messages").table.columns]]


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    step=("Int64", "step"),
    rank=("Int64", "rank"),
    stage=("Int64", "pipeline stage, from 0"),
    window_ns=("Int64", "length of the step, ns"),
    compute_ns=("Int64", "time with compute, ns"),
    exposed_collectives_ns=("Int64", "time with collectives and no compute, ns"),
    exposed_transfer_ns=("Int64", "time in which messages moved data and nothing else ran, ns"),
    message_wait_ns=("Int64", "time spent in messages beyond their transfer, nothing else running, ns"),
    bubble_ns=("Int64", "step without compute, exposed collectives and exposed transfer, ns"),
    warm_up_ns=("Int64", "of `bubble_ns`, before the first backward work; null if unknown"),
    steady_ns=("Int64", "of `bubble_ns`, between; null if unknown"),
    cool_down_ns=("Int64", "of `bubble_ns`, after the last forward work; null if unknown"),
    unmatched=(
        "Int64",
        "exposed messages whose other side is unknown; their whole time counts as waiting",
    ),
)
def bubbles(
    stage_time: pl.DataFrame, exposed_messages: pl.DataFrame, messages: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One step of one rank of a pipeline.

    A message waits first and moves data last, so its last `transfer_ns` are transfer.
    """
    stretches = with_transfer(exposed_messages, messages)
    step = ["trace", "step"]
    parts = stage_time.join(_moving(stretches), on=[*step, "part"], how="left", maintain_order="left")
    rest = pl.col("window_ns") - pl.col("compute_ns") - pl.col("exposed_collectives_ns")
    moved = pl.col("exposed_transfer_ns").fill_null(0)
    unmatched = stretches.filter(pl.col("transfer_ns").is_null()).group_by(step)
    sums = (
        parts.with_columns(moved, (rest - moved).alias("bubble_ns"))
        .with_columns(
            (pl.col("exposed_messages_ns") - pl.col("exposed_transfer_ns")).alias("message_wait_ns")
        )
        .group_by("iteration", *step, "rank", maintain_order=True)
        .agg(pl.col(r"^\w+_ns$").sum(), *_by_part())
        .join(unmatched.agg(pl.col("call").n_unique().cast(pl.Int64).alias("unmatched")), on=step, how="left")
        .with_columns(pl.col("unmatched").fill_null(0))
        .sort("iteration", "rank", "trace", "step")
    )
    stages = stages_of(sums["rank"], facts).alias("stage")
    return sums.with_columns(stages).select(*DERIVED.get("bubbles").table.columns)


def _by_part() -> list[pl.Expr]:
    """Return the bubble in each part of a step; null if the step is not divided."""
    names = {WARM_UP: "warm_up_ns", STEADY: "steady_ns", COOL_DOWN: "cool_down_ns"}
    bubble, part = pl.col("bubble_ns"), pl.col("part")
    return [
        pl.when((part == name).any()).then(bubble.filter(part == name).sum()).alias(column)
        for name, column in names.items()
    ]


def with_transfer(exposed_messages: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the exposed stretches of messages with `transfer_ns`, null if the partner is not known."""
    sides = [
        messages.select(trace=f"{side}_trace", call=f"{side}_call", transfer_ns="transfer_ns")
        for side in ("send", "recv")
    ]
    return exposed_messages.join(pl.concat(sides), on=["trace", "call"], how="left", maintain_order="left")


def moving(stretches: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of the messages' exposed stretches that moved data: a message waits first."""
    begins = pl.max_horizontal("start_ns", pl.col("call_end_ns") - pl.col("transfer_ns"))
    return stretches.drop_nulls("transfer_ns").with_columns(begins.alias("start_ns"))


def _moving(stretches: pl.DataFrame) -> pl.DataFrame:
    """Return the exposed transfer in each part of each step of each trace."""
    lengths = merge_intervals(moving(stretches), "trace", "step", "part").group_by("trace", "step", "part")
    return lengths.agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("exposed_transfer_ns"))
