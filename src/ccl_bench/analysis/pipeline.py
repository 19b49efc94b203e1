"""Pipeline bubbles: the time that a stage waits for its neighbours, and the theoretical value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.groups import stages_of
from ccl_bench.analysis.communication.matching import MESSAGES, point_to_point
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.phases import BACKWARD, FORWARD
from ccl_bench.analysis.device.work import computing_times
from ccl_bench.analysis.intervals import (
    beyond_windows,
    clip,
    merge_intervals,
    subtract,
    union_lengths,
)
from ccl_bench.analysis.names import is_one_of
from ccl_bench.base.lazy_imports import pl

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
    windows = steps.select("step", start_ns="device_start_ns", end_ns="device_end_ns")
    backward = phases.filter(pl.col("phase") == BACKWARD).select("step", backward_ns="start_ns")
    forward = phases.filter(pl.col("phase") == FORWARD).select("step", forward_ns="end_ns")
    first = pl.col("backward_ns").clip(pl.col("start_ns"), pl.col("end_ns"))
    bounds = (
        windows.join(backward, on="step", how="left", maintain_order="left")
        .join(forward, on="step", how="left", maintain_order="left")
        .with_columns(
            first=first,
            last=pl.max_horizontal(first, pl.col("forward_ns").clip(upper_bound=pl.col("end_ns"))),
            has_both=pl.col("backward_ns").is_not_null() & pl.col("forward_ns").is_not_null(),
        )
    )
    divided = bounds.filter("has_both")
    of_parts = (
        (WHOLE, bounds.filter(~pl.col("has_both")), "start_ns", "end_ns"),
        (WARM_UP, divided, "start_ns", "first"),
        (STEADY, divided, "first", "last"),
        (COOL_DOWN, divided, "last", "end_ns"),
    )
    parts = [
        rows.select("step", part=pl.lit(name), start_ns=start, end_ns=end)
        for name, rows, start, end in of_parts
    ]
    return pl.concat(parts).sort("start_ns", "end_ns", maintain_order=True)


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
    compute, spans, is_message = (
        computing_times(work),
        calls.select("start_ns", "end_ns"),
        _are_messages(calls),
    )
    computing = union_lengths(compute, stage_parts)
    busy = union_lengths(pl.concat([compute, spans.filter(~is_message)]), stage_parts)
    everything = union_lengths(pl.concat([compute, spans]), stage_parts) if is_message.any() else busy
    beyond = steps.select("step", beyond_windows(steps))
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
    spans = calls.select("start_ns", "end_ns", "call", call_end_ns="end_ns")
    collectives = spans.filter(~is_message).select("start_ns", "end_ns")
    exposed = subtract(spans.filter(is_message), pl.concat([computing_times(work), collectives]))
    inside = clip(exposed, stage_parts)
    place = stage_parts.select(pl.col("step", "part").gather(inside["window"]))
    return inside.with_columns(place).select(*DERIVED.get("exposed_messages").table.columns)


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
    moved = merge_intervals(moving(stretches), *step, "part").group_by(*step, "part")
    transfer = moved.agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("exposed_transfer_ns"))
    unmatched = stretches.filter(pl.col("transfer_ns").is_null()).group_by(step)
    bubble, part = pl.col("bubble_ns"), pl.col("part")
    by_part = {
        column: pl.when((part == name).any()).then(bubble.filter(part == name).sum())
        for name, column in ((WARM_UP, "warm_up_ns"), (STEADY, "steady_ns"), (COOL_DOWN, "cool_down_ns"))
    }
    rest = pl.col("window_ns") - pl.col("compute_ns") - pl.col("exposed_collectives_ns")
    sums = (
        stage_time.join(transfer, on=[*step, "part"], how="left", maintain_order="left")
        .with_columns(pl.col("exposed_transfer_ns").fill_null(0))
        .with_columns(
            bubble_ns=rest - pl.col("exposed_transfer_ns"),
            message_wait_ns=pl.col("exposed_messages_ns") - pl.col("exposed_transfer_ns"),
        )
        .group_by("iteration", *step, "rank", maintain_order=True)
        .agg(pl.col(r"^\w+_ns$").sum(), **by_part)
        .join(unmatched.agg(pl.col("call").n_unique().cast(pl.Int64).alias("unmatched")), on=step, how="left")
        .with_columns(pl.col("unmatched").fill_null(0))
        .sort("iteration", "rank", "trace", "step")
    )
    stages = stages_of(sums["rank"], facts).alias("stage")
    return sums.with_columns(stages).select(*DERIVED.get("bubbles").table.columns)


def with_transfer(exposed_messages: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the exposed stretches of messages with `transfer_ns`, null if the partner is not known."""
    sides = [
        messages.select(trace=f"{side}_trace", call=f"{side}_call", transfer_ns="transfer_ns")
        for side in MESSAGES
    ]
    return exposed_messages.join(pl.concat(sides), on=["trace", "call"], how="left", maintain_order="left")


def moving(stretches: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of the messages' exposed stretches that moved data: a message waits first."""
    begins = pl.max_horizontal("start_ns", pl.col("call_end_ns") - pl.col("transfer_ns"))
    return stretches.drop_nulls("transfer_ns").with_columns(begins.alias("start_ns"))
