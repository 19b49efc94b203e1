"""Pipeline bubbles: what a stage loses to waiting for its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import clipped, merged, outside, union_lengths
from ccl_bench.analysis.matching import point_to_point
from ccl_bench.analysis.parallelism import mesh, strides
from ccl_bench.analysis.work import COMPUTE
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@derived(
    step=("Int64", "step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    compute_ns=("Int64", "time with compute, ns"),
    exposed_collectives_ns=("Int64", "time with collectives, messages left out, and no compute, ns"),
    exposed_messages_ns=("Int64", "time with messages between two ranks and nothing else, ns"),
)
def stage_time(steps: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace, with messages between two ranks apart from other communication."""
    windows = device_windows(steps)
    compute = work.filter(pl.col("kind") == COMPUTE).select("start_ns", "end_ns")
    collectives = calls.filter(~_is_message()).select("start_ns", "end_ns")
    messages = calls.filter(_is_message()).select("start_ns", "end_ns")
    computing = union_lengths(compute, windows)
    busy = union_lengths(pl.concat([compute, collectives]), windows)
    everything = union_lengths(pl.concat([compute, collectives, messages]), windows)
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": windows["end_ns"] - windows["start_ns"],
            "compute_ns": computing,
            "exposed_collectives_ns": busy - computing,
            "exposed_messages_ns": everything - busy,
        }
    )


def _is_message() -> pl.Expr:
    return pl.col("collective").is_in(point_to_point())


@derived(
    step=("Int64", "step"),
    call=("Int64", "number of the call in this trace"),
    start_ns=("Int64", "start of the exposed part, ns"),
    end_ns=("Int64", "end of the exposed part, ns"),
    call_end_ns=("Int64", "end of the whole call, ns"),
)
def exposed_messages(steps: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One part of a message during which this rank neither computed nor was in a collective."""
    compute = work.filter(pl.col("kind") == COMPUTE).select("start_ns", "end_ns")
    collectives = calls.filter(~_is_message()).select("start_ns", "end_ns")
    messages = calls.filter(_is_message()).select(
        "start_ns", "end_ns", "call", pl.col("end_ns").alias("call_end_ns")
    )
    exposed = outside(messages, pl.concat([compute, collectives]))
    inside = clipped(exposed, device_windows(steps))
    numbers = steps["step"].gather(inside["window"])
    return inside.with_columns(numbers.alias("step")).select(*DERIVED.get("exposed_messages").table.columns)


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    step=("Int64", "step"),
    rank=("Int64", "rank"),
    stage=("Int64", "pipeline stage, from 0"),
    window_ns=("Int64", "length of the step's device window, ns"),
    compute_ns=("Int64", "time with compute, ns"),
    exposed_collectives_ns=("Int64", "time with collectives and no compute, ns"),
    exposed_transfer_ns=("Int64", "time in which messages moved data and nothing else ran, ns"),
    message_wait_ns=("Int64", "time spent in messages beyond their transfer, nothing else running, ns"),
    bubble_ns=("Int64", "window without compute, exposed collectives and exposed transfer, ns"),
    unmatched=(
        "Int64",
        "exposed messages of which the other side is not known; their whole time counts as waiting",
    ),
)
def bubbles(
    stage_time: pl.DataFrame, exposed_messages: pl.DataFrame, messages: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One step of one rank of a pipeline.

    A message waits first and moves data last, so its last `transfer_ns` are transfer.
    """
    moved = _transfers(exposed_messages, messages)
    key = ["trace", "step"]
    found = stage_time.join(moved, on=key, how="left", maintain_order="left").with_columns(
        pl.col("exposed_transfer_ns", "unmatched").fill_null(0)
    )
    rest = pl.col("window_ns") - pl.col("compute_ns") - pl.col("exposed_collectives_ns")
    return found.with_columns(
        _stages(found["rank"], facts).alias("stage"),
        (rest - pl.col("exposed_transfer_ns")).alias("bubble_ns"),
        (pl.col("exposed_messages_ns") - pl.col("exposed_transfer_ns")).alias("message_wait_ns"),
    ).select(*DERIVED.get("bubbles").table.columns)


def _transfers(exposed_messages: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return, for each step of each trace, the exposed transfer and the messages without a known partner."""
    sides = pl.concat(
        [
            messages.select(trace=f"{side}_trace", call=f"{side}_call", transfer_ns="transfer_ns")
            for side in ("send", "recv")
        ]
    )
    joined = exposed_messages.join(sides, on=["trace", "call"], how="left", maintain_order="left")
    begins = pl.max_horizontal("start_ns", pl.col("call_end_ns") - pl.col("transfer_ns"))
    moving = joined.drop_nulls("transfer_ns").with_columns(begins.alias("start_ns"))
    lengths = (
        merged(moving, "trace", "step")
        .group_by("trace", "step")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("exposed_transfer_ns"))
    )
    lone = joined.filter(pl.col("transfer_ns").is_null())
    unmatched = lone.group_by("trace", "step").agg(
        pl.col("call").n_unique().cast(pl.Int64).alias("unmatched")
    )
    return lengths.join(unmatched, on=["trace", "step"], how="full", coalesce=True)


def _stages(ranks: pl.Series, facts: Facts) -> pl.Series:
    """Return the pipeline stage of each rank; null where the mesh is not known."""
    axes = mesh(facts)
    if "pp" not in axes:
        return pl.Series([None] * len(ranks), dtype=pl.Int64)
    return ranks // strides(axes)["pp"] % axes["pp"]
