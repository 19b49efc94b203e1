"""Communication calls: each once, with the truest name, its group and its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication import naming
from ccl_bench.analysis.communication.arguments import with_host_arguments, with_kernel_arguments
from ccl_bench.analysis.communication.groups import with_groups
from ccl_bench.analysis.communication.message_size import with_sizes, with_types
from ccl_bench.analysis.communication.messages import MESSAGES, with_peers
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.device.work import COMMUNICATION, gloo_ranges
from ccl_bench.analysis.execution_trace.calls import completed
from ccl_bench.analysis.intervals import assign_step
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@derived(
    start_ns=("Int64", "start of the communication, ns"),
    end_ns=("Int64", "end of the communication, ns"),
    collective=("String", "canonical collective"),
    name=("Categorical", "name of the kernel or range"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    launch_ns=("Int64", "start of the launch on the CPU, ns; null where it was not recorded"),
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
        found = with_kernel_arguments(_launched_calls(device_work), collectives)
        found = found.with_columns(pl.lit(None, dtype=pl.Boolean).alias("is_paired"))
    else:
        ranges = gloo_ranges(annotations)
        own = naming.call_collectives(ranges["name"]).fill_null(naming.OTHER)
        found = with_host_arguments(ranges.with_columns(own.alias("by_name")), collectives)
        found = found.rename({"thread": "stream"})
        found = found.with_columns(pl.col("start_ns").alias("launch_ns"), launched_before=pl.lit(value=False))
    is_barrier = pl.col("by_name") == "barrier"  # of symmetric memory, within an operator that moves data
    truest = pl.when(is_barrier).then("by_name").otherwise(pl.coalesce("recorded", "by_name"))
    return with_types(found.with_columns(truest.alias("collective"))).select(
        "start_ns",
        "end_ns",
        "collective",
        "name",
        "stream",
        "launch_ns",
        "launched_before",
        "dtype",
        "in_elements",
        "out_elements",
        "in_split",
        "out_split",
        "group_name",
        "group_description",
        "group_size",
        "group_start",
        "group_stride",
        "group_ranks",
        "sequence",
        "peer",
        "peer_position",
        "is_paired",
        "own_sizes",
    )


def _launched_calls(device_work: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of a device with their launch; pieces of one operator are one call."""
    pieces = device_work.filter(pl.col("kind") == COMMUNICATION).rename(
        {"collective": "by_name", "thread": "launch_thread"}
    )
    parts = pieces.filter(pl.col("call_ns").is_not_null())
    if parts.is_empty():
        return pieces
    whole = parts.group_by("launch_thread", "call_ns", maintain_order=True).agg(
        pl.col("end_ns").max(), pl.col("name").drop_nulls().first(), pl.exclude("end_ns", "name").first()
    )
    alone = pieces.filter(pl.col("call_ns").is_null())
    return pl.concat([alone, whole.select(alone.columns)]).sort("start_ns", maintain_order=True)


@derived(
    group=("String", "name of the group, the same on every member"),
    members=("List(Int64)", "global ranks of the members; null where they are not known"),
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
    "size_bytes": ("Int64", "message as nccl-tests counts it, bytes; null where no size was recorded"),
    "own_sizes": ("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    "uneven": ("Boolean", "whether parts of an all-to-all differ, or may; null where nothing says"),
    "peer": ("Int64", "the other rank of a send or receive; null where this trace alone does not know it"),
    "peer_at_place": ("Int64", "the rank meant if the recorded number is a place in the group"),
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
    launch = pl.coalesce("launch_ns", "start_ns")
    ordered = sized.with_columns(launch.rank("ordinal").over("group").cast(pl.Int64).alias("order"))
    return _in_steps(ordered, steps).select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("call"),
        "step",
        "order",
        "start_ns",
        "end_ns",
        "collective",
        "name",
        "stream",
        "group",
        "sequence",
        "dtype",
        "sent_bytes",
        "received_bytes",
        "size_bytes",
        "own_sizes",
        "uneven",
        "peer",
        "peer_at_place",
        "peer_position",
        "is_paired",
    )


def _with_places(calls: pl.DataFrame, groups: pl.DataFrame, identity: pl.DataFrame) -> pl.DataFrame:
    """Add this rank's place among the members of the group of each call, and turn places of peers into ranks.

    A recorded peer is a global rank unless it is this rank itself or no member: then it is a place too.
    """
    rank = pl.lit(identity["rank"][0] if identity.height else None, dtype=pl.Int64)
    members = pl.col("members")
    place = members.list.eval(pl.element() == rank).list.arg_max()
    placed = calls.join(
        groups.select("group", "members", pl.col("size").alias("listed_size")),
        on="group",
        how="left",
        maintain_order="left",
    ).with_columns(
        pl.when(members.list.contains(rank)).then(place).cast(pl.Int64).alias("own_position"),
        pl.coalesce("group_size", "listed_size").alias("group_size"),
        pl.when(pl.col("collective").is_in(MESSAGES) & (pl.col("peer_position") >= 0)).then("peer_position"),
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


def _in_steps(found: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in order of start, each with the step that it belongs to."""
    ordered = found.sort("start_ns", maintain_order=True)
    return ordered.with_columns(steps["step"].gather(assign_step(ordered, steps)).alias("step"))


_COLUMNS: dict[str, Any] = dict(CALL_COLUMNS)


@derived(across_ranks=True, **_COLUMNS)
def known_calls(
    calls: pl.DataFrame, et_calls: pl.DataFrame, listed_groups: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One communication call of one rank; an Execution Trace fills in what the other trace does not know."""
    ranks = facts.world_size.value if facts.world_size else None
    return with_peers(completed(calls, et_calls), listed_groups, ranks)
