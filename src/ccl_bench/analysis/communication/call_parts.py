"""Waiting apart from transfer: what part of each communication call waited, what part moved data.

A call waits first and moves data last. What of it waited follows from what the other ranks recorded,
without a clock; what does not follow from that is *unknown*, and never counted as transfer.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.matching import symmetric_collectives
from ccl_bench.analysis.communication.messages import MESSAGES
from ccl_bench.analysis.communication.waits import attributable_waits
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import merge_intervals, subtract
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

WAITING, TRANSFER, UNKNOWN = "waiting", "transfer", "unknown"
PARTS = (WAITING, TRANSFER, UNKNOWN)

_BEFORE_OTHERS = (TRANSFER, UNKNOWN, WAITING)
"""Which part an instant with several calls is of: it is waiting if all calls that run are known to wait."""

NO_OTHER = "no other rank's trace has the call"
MEMBERS_LACK = "members of the group have no trace"
SHOWS_NONE = "such a call shows no waiting"
DISAGREES = "ranks disagree about the call"
STEP_LACKS = "traces lack calls of the step"
NO_STEP = "the call belongs to no step"


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    call=("Int64", "number of the call in its trace"),
    collective=("String", "canonical collective"),
    dimension=("String", "parallelism dimension"),
    start_ns=("Int64", "start of the part, ns"),
    end_ns=("Int64", "end of the part, ns"),
    part=("String", "`waiting`, `transfer` or `unknown`"),
    reason=("String", "why it is unknown; null for the other parts"),
)
def call_parts(
    traffic: pl.DataFrame, matched: pl.DataFrame, messages: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One part of a communication call of one rank; the parts of a call follow each other and tile it.

    A member of a symmetric collective waits until the last one has come; the rest is transfer if all
    members were recorded, else unknown: it may be waiting for one of the others. The shorter side of a
    message moves data, as in `bubble_size_pipeline`. In a group of one nobody is waited for.
    """
    known = pl.concat([_collectives(matched, facts), _messages(messages)])
    whole = traffic.join(known, on=["trace", "call"], how="left", maintain_order="left")
    alone = pl.col("size") == 1
    rest = pl.when(alone | pl.col("is_whole")).then(pl.lit(TRANSFER)).otherwise(pl.lit(UNKNOWN))
    reasons = _reasons(matched)
    placed = (
        whole.join(reasons, on=["trace", "call"], how="left", maintain_order="left")
        .with_columns(rest.alias("rest"), until_ns=pl.col("start_ns") + pl.col("wait_ns").fill_null(0))
        .with_columns(pl.when(pl.col("rest") == UNKNOWN).then(_reason()).alias("reason"))
    )
    waited = placed.with_columns(
        end_ns="until_ns", part=pl.lit(WAITING), reason=pl.lit(None, dtype=pl.String)
    )
    others = placed.with_columns(start_ns="until_ns", part="rest")
    columns = [*DERIVED.get("call_parts").table.columns]
    found = pl.concat([waited.select(columns), others.select(columns)])
    return found.filter(pl.col("start_ns") < pl.col("end_ns")).sort("trace", "start_ns", maintain_order=True)


def _collectives(matched: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return `wait_ns` of calls in symmetric collectives, and whether all members were recorded.

    A group of unknown size is that of all ranks that the job has, as far as that is stated.
    """
    ranks = pl.lit(facts.world_size.value if facts.world_size else None, dtype=pl.Int64)
    members = pl.coalesce("size", ranks, "present")
    return attributable_waits(matched).select(
        "trace", "call", "wait_ns", is_whole=pl.col("present") >= members
    )


def _messages(messages: pl.DataFrame) -> pl.DataFrame:
    agreed = messages.filter("agrees")
    return pl.concat(
        agreed.select(
            trace=f"{side}_trace",
            call=f"{side}_call",
            wait_ns=pl.col(f"{side}_ns") - pl.col("transfer_ns"),
            is_whole=pl.lit(value=True),
        )
        for side in MESSAGES
    )


def _reasons(matched: pl.DataFrame) -> pl.DataFrame:
    return matched.select(
        "trace",
        "call",
        "agrees",
        is_uneven="uneven",
        lacks_calls=pl.col("gaps").fill_null(0) > 0,
        of_no_step=pl.col("step").is_null(),
    )


def _reason() -> pl.Expr:
    """Return why the rest of a call is unknown."""
    shows_some = pl.col("collective").is_in([*symmetric_collectives(), *MESSAGES])
    is_uneven = pl.coalesce("is_uneven", "uneven").fill_null(value=False)
    return (
        pl.when(~shows_some | is_uneven)
        .then(pl.lit(SHOWS_NONE))
        .when(pl.col("is_whole").is_not_null())
        .then(pl.lit(MEMBERS_LACK))
        .when(~pl.col("agrees"))
        .then(pl.lit(DISAGREES))
        .when("lacks_calls")
        .then(pl.lit(STEP_LACKS))
        .when("of_no_step")
        .then(pl.lit(NO_STEP))
        .otherwise(pl.lit(NO_OTHER))
    )


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    step=("Int64", "step"),
    collective=("String", "canonical collective"),
    dimension=("String", "parallelism dimension"),
    part=("String", "`waiting`, `transfer` or `unknown`"),
    reason=("String", "why it is unknown; null for the other parts"),
    time_ns=("Int64", "time in the step's device window; over all rows of a step each instant once, ns"),
    exposed_ns=("Int64", "the same without the time in which something computed, ns"),
)
def communication_parts(call_stretches: pl.DataFrame, call_parts: pl.DataFrame) -> pl.DataFrame:
    """One part of the calls of one collective and dimension in one step of one trace.

    An instant in which several calls run is transfer if one of them moves data, else unknown if that of one
    is unknown, else waiting; it belongs to the call of that part that started first.
    """
    keys = ["iteration", "trace", "rank", "step", "collective", "dimension", "part", "reason"]
    pieces = _pieces(call_stretches, call_parts)
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    every = _apart(pieces.filter(~pl.col("is_exposed"))).group_by(keys).agg(length.alias("time_ns"))
    exposed = _apart(pieces.filter("is_exposed")).group_by(keys).agg(length.alias("exposed_ns"))
    both = every.join(exposed, on=keys, how="full", coalesce=True, nulls_equal=True)
    return both.with_columns(pl.col("time_ns", "exposed_ns").fill_null(0)).sort(keys)


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    step=("Int64", "step"),
    collective=("String", "canonical collective"),
    part=("String", "`waiting`, `transfer` or `unknown`"),
    time_ns=("Int64", "time in the step's device window, ns"),
)
def collective_parts(call_stretches: pl.DataFrame, call_parts: pl.DataFrame) -> pl.DataFrame:
    """One part of one collective in one step of one trace, whatever other collectives run meanwhile.

    The parts of a collective add up to the time with at least one call of it.
    """
    keys = ["iteration", "trace", "rank", "step", "collective"]
    pieces = _pieces(call_stretches, call_parts).filter(~pl.col("is_exposed"))
    return part_lengths(pieces, *keys).sort(*keys, "part")


def part_lengths(pieces: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return for each value of `keys` and each `part` its time, `time_ns`; an instant counts for one part."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    found = pieces.select(keys).unique(maintain_order=True)
    for number, part in enumerate(_BEFORE_OTHERS, start=1):
        some = pieces.filter(pl.col("part").is_in(_BEFORE_OTHERS[:number]))
        lengths = merge_intervals(some, *keys).group_by(keys).agg(length.alias(part))
        found = found.join(lengths, on=keys, how="left", nulls_equal=True, maintain_order="left")
    whole = [pl.col(part).fill_null(0) for part in _BEFORE_OTHERS]
    own = [whole[0], *(more - less for less, more in pairwise(whole))]
    wide = found.with_columns(time.alias(part) for part, time in zip(_BEFORE_OTHERS, own, strict=True))
    tall = wide.unpivot(PARTS, index=keys, variable_name="part", value_name="time_ns")
    return tall.filter(pl.col("time_ns") > 0)


def _pieces(call_stretches: pl.DataFrame, call_parts: pl.DataFrame) -> pl.DataFrame:
    """Return what each part of a call has in common with each stretch of it."""
    parts = call_parts.select(
        "trace", "call", "collective", "dimension", "part", "reason", from_ns="start_ns", until_ns="end_ns"
    )
    cut = call_stretches.join(parts, on=["trace", "call"], maintain_order="left").with_columns(
        pl.max_horizontal("start_ns", "from_ns").alias("start_ns"),
        pl.min_horizontal("end_ns", "until_ns").alias("end_ns"),
    )
    return cut.filter(pl.col("start_ns") < pl.col("end_ns")).drop("from_ns", "until_ns")


def exposed_pieces(call_stretches: pl.DataFrame, call_parts: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of calls of one trace in which nothing computed, each instant in one of them."""
    return _once(_pieces(call_stretches, call_parts).filter("is_exposed"))


def _apart(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return pieces of calls of all traces, end to end, each instant of a trace in one of them."""
    return _once(_end_to_end(pieces))


def _once(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return pieces of calls cut so that each instant is in one of them."""
    ordered = pieces.sort("start_ns", "call", maintain_order=True)
    found: list[pl.DataFrame] = []
    for part in _BEFORE_OTHERS:
        own = ordered.filter(pl.col("part") == part)
        reach = pl.col("end_ns").cum_max().shift(1)
        later = own.with_columns(pl.max_horizontal("start_ns", reach).alias("start_ns"))
        once = later.filter(pl.col("start_ns") < pl.col("end_ns"))
        found.append(subtract(once, pl.concat(found)) if found else once)
    return pl.concat(found)


def _end_to_end(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return pieces with the traces one after the other on one axis of time."""
    spans = pieces.group_by("trace").agg(
        first_ns=pl.col("start_ns").min(), span_ns=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    begins = spans.sort("trace").select(
        "trace", shift_ns=pl.col("span_ns").cum_sum() - pl.col("span_ns") - pl.col("first_ns")
    )
    shifted = pieces.join(begins, on="trace", maintain_order="left")
    return shifted.with_columns(pl.col("start_ns", "end_ns") + pl.col("shift_ns")).drop("shift_ns")
