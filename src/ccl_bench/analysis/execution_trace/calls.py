"""Communication calls of Execution Traces, and which calls of a Kineto trace of the same rank they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.arguments import launched, starters, with_sizes
from ccl_bench.analysis.communication.groups import GROUP_COLUMNS, described_groups, with_groups
from ccl_bench.analysis.communication.matching import MESSAGES
from ccl_bench.analysis.communication.traffic import with_dimensions
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.work import gloo_ranges
from ccl_bench.analysis.execution_trace.linking import links_of_ranks
from ccl_bench.analysis.names import call_collectives, has_own_sizes, kernel_collectives
from ccl_bench.base.lazy_imports import pl
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

OPERATOR = "record_param_comms"
C10D = "c10d::"

_FILLED = ("sent_bytes", "received_bytes", "size_bytes", "dtype", "peer", "own_sizes", "uneven")

_DESCRIBED: dict[str, Any] = {
    "node": ("Int64", "number of the node in the Execution Trace"),
    "collective": ("String", "canonical collective"),
    "name": ("String", "name as recorded"),
    "group": ("String", "name of the group, the same on every member"),
    "group_name": ("String", "process group name, or its address in old traces"),
    "group_size": ("Int64", "members of the process group"),
    "sequence": ("Int64", "running number of the call on its group"),
    "dtype": ("String", "element type as recorded"),
    "sent_bytes": ("Int64", "bytes sent by this rank"),
    "received_bytes": ("Int64", "bytes received by this rank"),
    "size_bytes": ("Int64", "message as nccl-tests counts it, bytes; null if no size was recorded"),
    "own_sizes": ("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    "uneven": ("Boolean", "whether parts of an all-to-all differ, or may; null if unknown"),
    "peer": ("Int64", "the other rank of a send or receive"),
}


@derived(**_DESCRIBED)
def et_described_calls(
    et_communication: pl.DataFrame, et_groups: pl.DataFrame, identity: pl.DataFrame
) -> pl.DataFrame:
    """One communication call of one Execution Trace; waiting and other bookkeeping left out."""
    grouped, groups = _grouped(et_communication, et_groups)
    calls = grouped.join(groups.select("group", "members"), on="group", how="left", maintain_order="left")
    rank = pl.lit(identity["rank"][0] if identity.height else None, dtype=pl.Int64)
    place = pl.col("members").list.eval(pl.element() == rank).list.arg_max()
    position = pl.when(pl.col("members").list.contains(rank)).then(place).otherwise("rank_argument")
    peer = pl.col("members").list.get(pl.col("rank_argument"), null_on_oob=True)
    described = calls.with_columns(
        position.cast(pl.Int64).alias("own_position"),
        pl.when(pl.col("collective").is_in(MESSAGES) & (pl.col("rank_argument") >= 0))
        .then(peer)
        .alias("peer"),
    )
    return with_sizes(described).select(*_DESCRIBED)


def _grouped(et_communication: pl.DataFrame, et_groups: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the calls that move data or synchronise, with their group, and the groups."""
    canonical = call_collectives(et_communication["name"])
    calls = et_communication.with_columns(canonical.alias("collective")).filter(canonical.is_not_null())
    described = calls.with_columns(
        pl.col("group_name").rank("dense").cast(pl.Int64).alias("stream"),
        pl.lit(None, dtype=pl.List(pl.Int64)).alias("group_ranks"),
        has_own_sizes(calls["name"]).alias("own_sizes"),
    )
    return with_groups(described, et_groups)


@derived(
    group=("String", "name of the group, the same on every member"),
    members=("List(Int64)", "global ranks of the members; null if unknown"),
    known_from=("String", "`recorded`, `pg_config`, `stride`, `name` (only its number) or `unknown`"),
    description=("String", "description as recorded"),
    size=("Int64", "members"),
)
def et_call_groups(et_communication: pl.DataFrame, et_groups: pl.DataFrame) -> pl.DataFrame:
    """One process group that the operators of one Execution Trace communicated in."""
    return _grouped(et_communication, et_groups)[1]


@derived(
    start_ns=("Int64", "start of the call, ns"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    op=("Int64", "number of the operator in its trace, in order of start"),
)
def call_operators(
    kernels: pl.DataFrame,
    launches: pl.DataFrame,
    annotations: pl.DataFrame,
    linkable_ops: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    collectives: pl.DataFrame,
) -> pl.DataFrame:
    """One communication call of one Kineto trace and the one operator that represents it."""
    names = linkable_ops["name"].cast(pl.String)
    is_call = names == OPERATOR
    if not is_call.any():
        is_call = names.str.starts_with(C10D) & call_collectives(names).is_not_null()
    spans = cpu_ops.select("start_ns", "end_ns", "thread").with_columns(linkable_ops["op"])
    operators = spans.filter(is_call).sort("start_ns", maintain_order=True)
    if kernels.height:
        communicating = kernels.filter(kernel_collectives(kernels).is_not_null())
        within = operators.rename({"start_ns": "launch_ns", "end_ns": "until_ns", "thread": "launch_thread"})
        placed = (
            launched(communicating, launches)
            .sort("launch_ns")
            .join_asof(
                within, on="launch_ns", by="launch_thread", strategy="backward", check_sortedness=False
            )
        )
        inside = pl.col("launch_ns") < pl.col("until_ns")
        calls = placed.select("start_ns", "stream", pl.when(inside).then("op").alias("op"))
    else:
        sources = ("host",) if (names == OPERATOR).any() else ("op",)
        operator_starts = starters(gloo_ranges(annotations), collectives, sources)
        calls = operator_starts.join(
            operators, left_on=["operator_ns", "operator_thread"], right_on=["start_ns", "thread"], how="left"
        ).select("start_ns", pl.col("thread").alias("stream"), "op")
    return calls.drop_nulls("op").filter(pl.len().over("op") == 1)


@derived(
    across_ranks=True,
    rows_of="et_described_calls",
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Execution Trace"),
    **_DESCRIBED,
    call_trace=("Int64", "the Kineto trace that holds the call; null if none does"),
    call_start_ns=("Int64", "start of the call in the Kineto trace, ns"),
    call_stream=("Int64", "stream or thread of the call in the Kineto trace"),
)
def et_calls(
    et_described_calls: pl.DataFrame,
    communication_nodes: pl.DataFrame,
    communication_ops: pl.DataFrame,
    call_operators: pl.DataFrame,
) -> pl.DataFrame:
    """One communication call of one Execution Trace, and the call of a Kineto trace that it is."""
    columns = list(DERIVED.get("et_calls").table.columns)
    parts = [
        link.pairs.select(pl.lit(key[2], dtype=pl.Int64).alias("trace"), "node", "op").with_columns(
            pl.lit(op_trace, dtype=pl.Int64).alias("call_trace")
        )
        for key, op_trace, link in links_of_ranks(communication_nodes, communication_ops)
    ]
    numbers = dict.fromkeys(("trace", "node", "op", "call_trace"), pl.Int64)
    pairs = pl.concat(parts) if parts else pl.DataFrame(schema=numbers)
    where = call_operators.select(
        pl.col("trace").alias("call_trace"),
        "op",
        pl.col("start_ns").alias("call_start_ns"),
        pl.col("stream").alias("call_stream"),
    )
    placed = pairs.join(where, on=["call_trace", "op"], how="inner").drop("op")
    return et_described_calls.join(placed, on=["trace", "node"], how="left", maintain_order="left").select(
        columns
    )


def completed(calls: pl.DataFrame, et_calls: pl.DataFrame) -> pl.DataFrame:
    """Return the `calls` of a run with what Execution Traces know where Kineto does not.

    Kineto does not know a size, or, before it recorded split sizes, that an all-to-all had a size of its
    own for each member. Everything about the message is then taken from the Execution Trace together.
    """
    if et_calls.is_empty():
        return calls
    linked_calls = et_calls.drop_nulls("call_start_ns").select(
        pl.col("call_trace").alias("trace"),
        pl.col("call_start_ns").alias("start_ns"),
        pl.col("call_stream").alias("stream"),
        *(pl.col(name).alias(f"et {name}") for name in (*_FILLED, "collective")),
    )
    joined = calls.join(linked_calls, on=["trace", "start_ns", "stream"], how="left", maintain_order="left")
    lacks = pl.col("size_bytes").is_null() | (pl.col("et own_sizes") & ~pl.col("own_sizes"))
    better = lacks & (pl.col("collective") == pl.col("et collective")) & pl.col("et size_bytes").is_not_null()
    return joined.with_columns(
        pl.when(better).then(pl.coalesce(f"et {name}", name)).otherwise(name).alias(name) for name in _FILLED
    ).select(calls.columns)


_MARK = r"^ProfilerStep#(\d{1,15})$"


@derived(
    reads={"et_nodes": ("node", "name")},
    step=("Int64", "number of the step as recorded; 0 if the whole trace is one"),
    first_node=("Int64", "first node of the step"),
    source=("String", "how the steps were found"),
)
def et_steps(et_nodes: pl.DataFrame) -> pl.DataFrame:
    """One step of one Execution Trace: a step lasts until the next one begins, the last until the end."""
    number = pl.col("name").cast(pl.String).str.extract(_MARK).cast(pl.Int64)
    marks = et_nodes.drop_nulls("node").select("node", step=number, source=pl.lit("ProfilerStep"))
    steps = marks.drop_nulls("step").unique("step", keep="first", maintain_order=True).sort("node")
    if steps.is_empty():
        steps = marks.sort("node").head(1).with_columns(step=pl.lit(0, pl.Int64), source=pl.lit(WHOLE_TRACE))
    return steps.select("step", pl.col("node").alias("first_node"), "source")


@derived(across_ranks=True, rows_of="et_call_groups", **GROUP_COLUMNS)
def et_used_groups(et_call_groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One process group that operators of Execution Traces communicated in."""
    return described_groups(et_call_groups, facts)


@derived(
    across_ranks=True,
    rows_of="et_described_calls",
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Execution Trace"),
    node=("Int64", "number of the node"),
    step=("Int64", "step in which the call started; null for none"),
    collective=("String", "canonical collective"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension: an axis, `dp`, `world` or `unknown`"),
    size=("Int64", "members of the group, 2 for a message between two ranks"),
    size_bytes=("Int64", "message as nccl-tests counts it, bytes; null if it is unattributed"),
)
def et_traffic(
    et_described_calls: pl.DataFrame, et_steps: pl.DataFrame, et_used_groups: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One communication call of one Execution Trace, which shows what was communicated and not when."""
    calls = with_dimensions(et_described_calls, et_used_groups, facts)
    begins = et_steps.select("trace", "step", node="first_node").sort("node")
    placed = calls.sort("node").join_asof(
        begins, on="node", by="trace", strategy="backward", check_sortedness=False
    )
    return placed.sort("trace", "node").select(*DERIVED.get("et_traffic").table.columns)
