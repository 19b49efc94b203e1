"""Communication calls: each once, with its name, group and size, and what part of it waited.

A call waits first and moves data last. What of it waited follows from what the other ranks recorded,
without a clock; what does not follow from that is *unknown*, and never counted as transfer.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.arguments import (
    with_host_arguments,
    with_kernel_arguments,
    with_sizes,
    with_types,
)
from ccl_bench.analysis.communication.clocks import members_without_wait, until_last_arrival
from ccl_bench.analysis.communication.groups import with_groups
from ccl_bench.analysis.communication.matching import MESSAGES, symmetric_collectives, with_peers
from ccl_bench.analysis.communication.stragglers import attributable_waits
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.work import COMMUNICATION, gloo_ranges
from ccl_bench.analysis.execution_trace.calls import completed
from ccl_bench.analysis.intervals import assign_step, merge_intervals, subtract
from ccl_bench.analysis.names import OTHER, call_collectives
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@derived(
    start_ns=("Int64", "start of the communication, ns"),
    end_ns=("Int64", "end of the communication, ns"),
    collective=("String", "canonical collective"),
    name=("Categorical", "name of the kernel or range"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    launch_ns=("Int64", "start of the launch on the CPU, ns; null if not recorded"),
    launched_before=("Boolean", "whether it was launched before the recording"),
    dtype=("String", "element type as recorded"),
    in_elements=("Int64", "elements sent by this rank"),
    out_elements=("Int64", "elements received by this rank"),
    in_split=("List(Int64)", "rows sent to each member of an all-to-all"),
    out_split=("List(Int64)", "rows received from each member of an all-to-all"),
    group_name=("String", "process group name"),
    group_description=("String", "process group description"),
    group_size=("Int64", "members of the process group"),
    group_start=("Int64", "first global rank of the group"),
    group_stride=("Int64", "stride between global ranks of the group"),
    group_ranks=("List(Int64)", "global ranks of the members as recorded"),
    sequence=("Int64", "running number of the call on its group"),
    peer=("Int64", "the other rank of a send or receive as recorded"),
    peer_position=("Int64", "its place in the process group as recorded; of other calls this rank's"),
    is_paired=("Boolean", "whether the operator that started a range of gloo is known; null for kernels"),
    own_sizes=("Boolean", "whether it is an all-to-all with a size of its own for each member"),
)
def described_calls(
    device_work: pl.DataFrame, annotations: pl.DataFrame, collectives: pl.DataFrame
) -> pl.DataFrame:
    """One communication call of one trace with its arguments.

    A call is a kernel, all that one operator launched where torch does not call NCCL in it, or a `gloo:*`
    range on the CPU.
    """
    if device_work.height:
        pieces = device_work.filter(pl.col("kind") == COMMUNICATION).rename(
            {"collective": "by_name", "thread": "launch_thread"}
        )
        parts = pieces.filter(pl.col("call_ns").is_not_null())
        if parts.height:
            whole = parts.group_by("launch_thread", "call_ns", maintain_order=True).agg(
                pl.col("end_ns").max(),
                pl.col("name").drop_nulls().first(),
                pl.exclude("end_ns", "name").first(),
            )
            alone = pieces.filter(pl.col("call_ns").is_null())
            pieces = pl.concat([alone, whole.select(alone.columns)]).sort("start_ns", maintain_order=True)
        described = with_kernel_arguments(pieces, collectives).with_columns(
            is_paired=pl.lit(None, dtype=pl.Boolean)
        )
    else:
        ranges = gloo_ranges(annotations)
        by_name = call_collectives(ranges["name"]).fill_null(OTHER).alias("by_name")
        described = with_host_arguments(ranges.with_columns(by_name), collectives).with_columns(
            launch_ns="start_ns", launched_before=pl.lit(value=False), stream="thread"
        )
    # A barrier of symmetric memory is part of an operator that moves data, whose arguments it would get.
    is_barrier = pl.col("by_name") == "barrier"
    truest = pl.when(is_barrier).then("by_name").otherwise(pl.coalesce("recorded", "by_name"))
    typed = with_types(described.with_columns(collective=truest))
    return typed.select(*DERIVED.get("described_calls").table.columns)


@derived(
    group=("String", "name of the group, the same on every member"),
    members=("List(Int64)", "global ranks of the members; null if unknown"),
    known_from=(
        "String",
        "`recorded`, `pg_config`, `stride`, `name` (only its number), `threads` or `unknown`",
    ),
    description=("String", "description as recorded"),
    size=("Int64", "members"),
)
def call_groups(described_calls: pl.DataFrame, process_groups: pl.DataFrame) -> pl.DataFrame:
    """One process group that a trace communicated in."""
    return with_groups(described_calls, process_groups)[1]


CALL_COLUMNS: dict[str, Any] = {
    "call": ("Int64", "number of the call in this trace, in order of start"),
    "step": ("Int64", "step that launched the call, else in whose device window it started; null for none"),
    "order": ("Int64", "running number of the call on its group in this trace, in order of launch"),
    "start_ns": ("Int64", "start of the communication, ns"),
    "end_ns": ("Int64", "end of the communication, ns"),
    "collective": ("String", "canonical collective"),
    "name": ("Categorical", "name of the kernel or range"),
    "stream": ("Int64", "stream of the device, or thread of the CPU"),
    "group": ("String", "name of the group, the same on every member"),
    "sequence": ("Int64", "running number of the call on its group as recorded"),
    "dtype": ("String", "element type as recorded"),
    "sent_bytes": ("Int64", "bytes sent by this rank"),
    "received_bytes": ("Int64", "bytes received by this rank"),
    "size_bytes": ("Int64", "message as nccl-tests counts it, bytes; null if no size was recorded"),
    "own_sizes": ("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    "uneven": ("Boolean", "whether parts of an all-to-all differ, or may; null if unknown"),
    "peer": ("Int64", "the other rank of a send or receive; null if this trace alone does not know it"),
    "peer_at_place": ("Int64", "the other rank, if the recorded number is a place in the group"),
    "peer_position": ("Int64", "place of the other rank in the group, where its members are not known"),
    "is_paired": ("Boolean", "whether the operator that started a range of gloo is known; null for kernels"),
}


@derived(**CALL_COLUMNS)
def calls(
    described_calls: pl.DataFrame, steps: pl.DataFrame, process_groups: pl.DataFrame, identity: pl.DataFrame
) -> pl.DataFrame:
    """One communication call of one trace: what, in which group, when, how much."""
    grouped, groups = with_groups(described_calls, process_groups)
    sized = with_sizes(_with_places(grouped, groups, identity))
    # What was launched before the recording was launched before all else, however late it ran.
    launch = pl.struct(~pl.col("launched_before"), pl.coalesce("launch_ns", "start_ns"))
    order = launch.rank("ordinal").over("group").cast(pl.Int64)
    ordered = sized.with_columns(order.alias("order")).sort("start_ns", maintain_order=True)
    placed = ordered.with_columns(steps["step"].gather(assign_step(ordered, steps)))
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    return placed.select(number.alias("call"), *(name for name in CALL_COLUMNS if name != "call"))


def _with_places(calls: pl.DataFrame, groups: pl.DataFrame, identity: pl.DataFrame) -> pl.DataFrame:
    """Add this rank's place among the members of the group of each call, and turn places of peers into ranks.

    A recorded peer is a global rank unless it is this rank itself or no member: then it is a place too.
    A negative one stands for any rank.
    """
    rank = pl.lit(identity["rank"][0] if identity.height else None, dtype=pl.Int64)
    members = pl.col("members")
    place = members.list.eval(pl.element() == rank).list.arg_max()
    placed = calls.join(
        groups[["group", "members", "size"]],
        on="group",
        how="left",
        maintain_order="left",
    ).with_columns(
        pl.when(members.list.contains(rank)).then(place).cast(pl.Int64).alias("own_position"),
        pl.coalesce("group_size", "size").alias("group_size"),
        pl.when(pl.col("collective").is_in(MESSAGES) & (pl.col("peer_position") >= 0)).then("peer_position"),
        pl.when(pl.col("peer") >= 0).then("peer"),
    )
    at_place = members.list.get(pl.coalesce("peer_position", "peer"), null_on_oob=True)
    is_other = members.list.contains(pl.col("peer")) & (pl.col("peer") != rank)
    fits = members.is_null() | is_other.fill_null(value=True)
    by_place = pl.col("peer_position").is_not_null() & at_place.is_not_null()
    return placed.with_columns(
        at_place.alias("peer_at_place"),
        pl.when(by_place).then(at_place).when(fits).then("peer").alias("peer"),
        pl.when(members.is_null()).then("peer_position").alias("peer_position"),
    )


@derived(across_ranks=True, **CALL_COLUMNS)
def known_calls(
    calls: pl.DataFrame, et_calls: pl.DataFrame, listed_groups: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One communication call of one rank; an Execution Trace fills in what the other trace does not know."""
    ranks = facts.world_size.value if facts.world_size else None
    return with_peers(completed(calls, et_calls), listed_groups, ranks)


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
    # A group of unknown size is that of all ranks that the job has, as far as that is stated.
    ranks = pl.lit(facts.world_size.value if facts.world_size else None, dtype=pl.Int64)
    members = pl.coalesce("size", ranks, "present")
    of_collectives = attributable_waits(matched).select(
        "trace", "call", "wait_ns", is_whole=pl.col("present") >= members
    )
    of_messages = [
        messages.filter("agrees").select(
            trace=f"{side}_trace",
            call=f"{side}_call",
            wait_ns=pl.col(f"{side}_ns") - pl.col("transfer_ns"),
            is_whole=pl.lit(value=True),
        )
        for side in MESSAGES
    ]
    doubts = matched.select(
        "trace",
        "call",
        "agrees",
        is_uneven="uneven",
        lacks_calls=pl.col("gaps").fill_null(0) > 0,
        of_no_step=pl.col("step").is_null(),
    )
    place = ["trace", "call"]
    is_known = (pl.col("size") == 1) | pl.col("is_whole")
    placed = (
        traffic.join(pl.concat([of_collectives, *of_messages]), on=place, how="left", maintain_order="left")
        .join(doubts, on=place, how="left", maintain_order="left")
        .with_columns(
            rest=pl.when(is_known).then(pl.lit(TRANSFER)).otherwise(pl.lit(UNKNOWN)),
            until_ns=pl.col("start_ns") + pl.col("wait_ns").fill_null(0),
        )
        .with_columns(reason=pl.when(pl.col("rest") == UNKNOWN).then(_reason()))
    )
    waited = placed.with_columns(
        end_ns="until_ns", part=pl.lit(WAITING), reason=pl.lit(None, dtype=pl.String)
    )
    others = placed.with_columns(start_ns="until_ns", part="rest")
    columns = [*DERIVED.get("call_parts").table.columns]
    pieces = pl.concat([waited.select(columns), others.select(columns)])
    return pieces.filter(pl.col("start_ns") < pl.col("end_ns")).sort("trace", "start_ns", maintain_order=True)


def _reason() -> pl.Expr:
    """Return the reason why the rest of a call is unknown."""
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
    every = (
        _disjoint_of_all_traces(pieces.filter(~pl.col("is_exposed")))
        .group_by(keys)
        .agg(length.alias("time_ns"))
    )
    exposed = (
        _disjoint_of_all_traces(pieces.filter("is_exposed")).group_by(keys).agg(length.alias("exposed_ns"))
    )
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


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    step=("Int64", "step"),
    collective=("String", "canonical collective"),
    wait_ns=("Int64", "exposed time in which the rank waited and no other call moved data, ns"),
)
def other_waits(
    call_stretches: pl.DataFrame,
    call_parts: pl.DataFrame,
    matched: pl.DataFrame,
    messages: pl.DataFrame,
    clock_offsets: pl.DataFrame,
) -> pl.DataFrame:
    """Waiting of one trace in one step in one collective that `waits` leaves out.

    These are rooted collectives, uneven all-to-alls and messages; those between pipeline stages are the
    bubble, and not among them.
    """
    table = DERIVED.get("other_waits").table
    members = members_without_wait(matched, messages)
    of_members = call_parts.join(members, on=["trace", "call"], how="semi")
    spans = of_members.group_by("trace", "call").agg(
        pl.col("iteration", "rank", "collective", "dimension").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
    )
    waited = until_last_arrival(spans.join(members, on=["trace", "call"]), clock_offsets)
    if waited.is_empty():
        return table.empty()
    marked = waited.with_columns(end_ns="until_ns", part=pl.lit(WAITING), reason=pl.lit(SHOWS_NONE))
    moved = waited.with_columns(
        start_ns="until_ns", part=pl.lit(TRANSFER), reason=pl.lit(None, dtype=pl.String)
    )
    others = call_parts.join(waited, on=["trace", "call"], how="anti", maintain_order="left")
    parts = pl.concat([others, *(each.select(others.columns) for each in (marked, moved))])
    exposed = _disjoint_of_all_traces(_pieces(call_stretches, parts).filter("is_exposed"))
    keys = ["iteration", "trace", "rank", "step", "collective"]
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    waits = exposed.filter((pl.col("part") == WAITING) & pl.col("reason").is_not_null())
    return waits.group_by(keys).agg(length.alias("wait_ns")).sort(keys)


def part_lengths(pieces: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return for each value of `keys` and each `part` its time, `time_ns`; an instant counts for one part."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    cumulative = pieces[[*keys]].unique(maintain_order=True)
    for number, part in enumerate(_BEFORE_OTHERS, start=1):
        some = pieces.filter(pl.col("part").is_in(_BEFORE_OTHERS[:number]))
        lengths = merge_intervals(some, *keys).group_by(keys).agg(length.alias(part))
        cumulative = cumulative.join(lengths, on=keys, how="left", nulls_equal=True, maintain_order="left")
    whole = [pl.col(part).fill_null(0) for part in _BEFORE_OTHERS]
    part_times = [whole[0], *(more - less for less, more in pairwise(whole))]
    wide = cumulative.with_columns(
        time.alias(part) for part, time in zip(_BEFORE_OTHERS, part_times, strict=True)
    )
    tall = wide.unpivot(PARTS, index=keys, variable_name="part", value_name="time_ns")
    return tall.filter(pl.col("time_ns") > 0)


def _pieces(call_stretches: pl.DataFrame, call_parts: pl.DataFrame) -> pl.DataFrame:
    """Return the intersection of each part of a call with each stretch of it."""
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
    return _disjoint(_pieces(call_stretches, call_parts).filter("is_exposed"))


def _disjoint_of_all_traces(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return pieces of calls of all traces, end to end, each instant of a trace in one of them."""
    if pieces.is_empty():
        return pieces
    spans = pieces.group_by("trace").agg(
        first_ns=pl.col("start_ns").min(), span_ns=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    begins = spans.sort("trace").select(
        "trace", shift_ns=pl.col("span_ns").cum_sum() - pl.col("span_ns") - pl.col("first_ns")
    )
    shifted = pieces.join(begins, on="trace", maintain_order="left")
    return _disjoint(shifted.with_columns(pl.col("start_ns", "end_ns") + pl.col("shift_ns")).drop("shift_ns"))


def _disjoint(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return pieces of calls cut so that each instant is in one of them."""
    ordered = pieces.sort("start_ns", "call", maintain_order=True)
    disjoint: list[pl.DataFrame] = []
    for part in _BEFORE_OTHERS:
        some = ordered.filter(pl.col("part") == part)
        if some.is_empty():
            continue
        reach = pl.col("end_ns").cum_max().shift(1)
        cut = some.with_columns(pl.max_horizontal("start_ns", reach).alias("start_ns"))
        cut = cut.filter(pl.col("start_ns") < pl.col("end_ns"))
        disjoint.append(subtract(cut, pl.concat(disjoint)) if disjoint else cut)
    return pl.concat(disjoint) if disjoint else ordered.clear()
