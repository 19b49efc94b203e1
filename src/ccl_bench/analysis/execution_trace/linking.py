"""Which operator of a Kineto trace is which node of the Execution Trace of the same rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = ("record function id", "external id", "order")
"""How links can be found, the most reliable first."""

LEAST_RATE = 0.5
"""Recordings of which fewer operators agree are not of the same work: common names agree by chance."""

COMMUNICATION = ("record_param_comms", "c10d::")
"""Operators that start communication."""

_MARKED = 7
"""torch's RecordScope of ranges that the program or framework marked, which are no operators."""


@dataclass(frozen=True, slots=True)
class Link:
    """How the operators of two recordings of one rank belong together."""

    pairs: pl.DataFrame
    """`node` of the Execution Trace and `op`, the row of the Kineto operator; names agree."""
    rule: str
    """One of `RULES`, or `none`."""
    offset: int | None
    """Kineto's `External id` minus `rf_id`, where that is the rule."""
    nodes: int
    """Operators in the Execution Trace."""
    ops: int
    """Operators in the Kineto trace."""

    @property
    def rate(self) -> float:
        """Share of the operators of the shorter recording that are linked."""
        possible = min(self.nodes, self.ops)
        return self.pairs.height / possible if possible else 0.0


@derived(
    node=("Int64", "number of the node"),
    rf_id=("Int64", "id shared with Kineto's operators"),
    name=("Categorical", "name as recorded"),
    thread=("Int64", "number of the thread in this file"),
    is_operator=("Boolean", "whether it is an operator, not a marked range"),
)
def linkable_nodes(et_nodes: pl.DataFrame) -> pl.DataFrame:
    """One node of an Execution Trace that may be a Kineto operator."""
    return et_nodes.filter(pl.col("rf_id") > 0).select(
        "node",
        "rf_id",
        "name",
        "thread",
        (pl.col("scope") != _MARKED).fill_null(value=True).alias("is_operator"),
    )


@derived(
    op=("Int64", "number of the operator in its trace, in order of start"),
    name=("Categorical", "name as recorded"),
    thread=("Int64", "thread id"),
    external_id=("Int64", "Kineto's number of the operator"),
    record_function_id=("Int64", "id shared with the Execution Trace; 0 or null without one"),
)
def linkable_ops(cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """One operator of a Kineto trace that may be a node of an Execution Trace."""
    return cpu_ops.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("op"),
        "name",
        "thread",
        "external_id",
        "record_function_id",
    )


@derived(
    node=("Int64", "number of the node"),
    rf_id=("Int64", "id shared with Kineto's operators"),
    name=("Categorical", "name as recorded"),
    thread=("Int64", "number of the thread in this file"),
    is_operator=("Boolean", "whether it is an operator, not a marked range"),
)
def communication_nodes(linkable_nodes: pl.DataFrame) -> pl.DataFrame:
    """One linkable node that starts communication."""
    return linkable_nodes.filter(_communicates())


@derived(
    op=("Int64", "number of the operator in its trace, in order of start"),
    name=("Categorical", "name as recorded"),
    thread=("Int64", "thread id"),
    external_id=("Int64", "Kineto's number of the operator"),
    record_function_id=("Int64", "id shared with the Execution Trace; 0 or null without one"),
)
def communication_ops(linkable_ops: pl.DataFrame) -> pl.DataFrame:
    """One linkable operator that starts communication."""
    return linkable_ops.filter(_communicates())


def _communicates() -> pl.Expr:
    name = pl.col("name").cast(pl.String)
    return pl.any_horizontal(name.str.starts_with(prefix) for prefix in COMMUNICATION)


def link_operators(nodes: pl.DataFrame, ops: pl.DataFrame) -> Link:
    """Link the `linkable_nodes` and `linkable_ops` of one rank by the rule under which most names agree."""
    nodes = nodes.with_columns(pl.col("name").cast(pl.String)).unique(
        "rf_id", keep="first", maintain_order=True
    )
    ops = ops.with_columns(pl.col("name").cast(pl.String))
    by_id = _by_number(nodes, ops, "record_function_id", 0)
    in_order = _in_order(nodes, ops)
    # Kineto's `External id` counts on from `rf_id`; by how much, most operators paired in order show.
    ids = in_order.join(nodes.select("node", "rf_id"), on="node").join(
        ops.select("op", "external_id"), on="op"
    )
    leads = ids.select(ahead=pl.col("external_id") - pl.col("rf_id")).drop_nulls().group_by("ahead").len()
    offset = leads.sort("len", "ahead", descending=[True, False])["ahead"].head(1).to_list()
    by_external = _by_number(nodes, ops, "external_id", offset[0]) if offset else no_pairs()
    pairs = dict(zip(RULES, (by_id, by_external, in_order), strict=True))
    rule = max(RULES, key=lambda name: (pairs[name].height, -RULES.index(name)))
    operators = int(nodes["is_operator"].sum())
    link = Link(
        pairs[rule].sort("node"), rule, offset[0] if rule == RULES[1] else None, operators, ops.height
    )
    return link if link.rate >= LEAST_RATE else Link(no_pairs(), "none", None, operators, ops.height)


def no_pairs() -> pl.DataFrame:
    """Return the pairs of recordings that have nothing in common."""
    return pl.DataFrame(schema={"node": pl.Int64, "op": pl.Int64})


def _by_number(nodes: pl.DataFrame, ops: pl.DataFrame, column: str, offset: int) -> pl.DataFrame:
    """Return the pairs in which an operator's number is `rf_id` + `offset` and names agree."""
    numbered = ops.select("op", "name", rf_id=pl.col(column) - offset).drop_nulls("rf_id")
    first = numbered.unique("rf_id", keep="first", maintain_order=True)
    return nodes.join(first, on=["rf_id", "name"], how="inner").select("node", "op")


def _in_order(nodes: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of k-th operators of a name on a thread, for names that both have equally often."""
    threads = _threads(nodes, ops)
    renamed = nodes.join(threads, on="thread", how="inner").drop("thread").rename({"op_thread": "thread"})
    key = ["thread", "name"]
    left, right = (
        table.sort(order).select(
            order, *key, place=pl.int_range(pl.len()).over(key), count=pl.len().over(key)
        )
        for table, order in ((renamed, "node"), (ops, "op"))
    )
    return left.join(right, on=[*key, "place", "count"], how="inner").select("node", "op")


def _threads(nodes: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return pairs of a thread of the Execution Trace and one of Kineto: those that share most names."""
    left = nodes.group_by("thread", "name").len("here")
    right = ops.group_by(pl.col("thread").alias("op_thread"), "name").len("there")
    common = pl.min_horizontal("here", "there").sum().alias("common")
    shared = left.join(right, on="name").group_by("thread", "op_thread").agg(common)
    rows = []
    paired: tuple[set[int], set[int]] = (set(), set())
    for thread, op_thread, _ in shared.sort(
        "common", "thread", "op_thread", descending=[True, False, False]
    ).iter_rows():
        if thread not in paired[0] and op_thread not in paired[1]:
            rows.append((thread, op_thread))
            paired[0].add(thread)
            paired[1].add(op_thread)
    return pl.DataFrame(rows, schema={"thread": pl.Int64, "op_thread": pl.Int64}, orient="row")


@derived(
    across_ranks=True,
    rows_of="linkable_nodes",
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Execution Trace"),
    op_trace=("Int64", "the Kineto trace; null if none fits"),
    rule=("String", "`record function id`, `external id` (a constant ahead of it), `order` or `none`"),
    offset=("Int64", "`External id` minus `rf_id`, where that is the rule"),
    nodes=("Int64", "operators in the Execution Trace"),
    ops=("Int64", "operators in the Kineto trace"),
    linked=("Int64", "operators that are the same in both, by name too"),
    rate=("Float64", "linked operators divided by those of the shorter recording"),
)
def et_links(linkable_nodes: pl.DataFrame, linkable_ops: pl.DataFrame) -> pl.DataFrame:
    """One Execution Trace and how its operators were found in the Kineto trace of the same rank."""
    rows = [
        (
            iteration,
            rank,
            trace,
            op_trace,
            link.rule,
            link.offset,
            link.nodes,
            link.ops,
            link.pairs.height,
            link.rate,
        )
        for (iteration, rank, trace), op_trace, link in links_of_ranks(linkable_nodes, linkable_ops)
    ]
    schema = {name: column.type for name, column in DERIVED.get("et_links").table.columns.items()}
    return pl.DataFrame(rows, schema=schema, orient="row")


def links_of_ranks(
    nodes: pl.DataFrame, ops: pl.DataFrame
) -> Iterator[tuple[tuple[int | None, int | None, int], int | None, Link]]:
    """Yield (window, rank, trace) of each Execution Trace, the Kineto trace that fits best, and their link.

    An Execution Trace outside numbered windows may belong to any window of its rank.
    """
    trace_key = ["iteration", "rank", "trace"]
    kineto = ops.select(trace_key).unique(maintain_order=True).rows()
    for key in nodes.select(trace_key).unique(maintain_order=True).sort("trace").rows():
        trace_nodes = nodes.filter(pl.col("trace") == key[2])
        others = [k[2] for k in kineto if k[1] == key[1] and (key[0] is None or k[0] == key[0])]
        links = [
            (other, link_operators(trace_nodes, ops.filter(pl.col("trace") == other))) for other in others
        ]
        best = max(links, key=lambda link: link[1].pairs.height, default=None)
        if best is None or best[1].rule == "none":
            yield (
                key,
                None,
                best[1] if best else Link(no_pairs(), "none", None, int(trace_nodes["is_operator"].sum()), 0),
            )
        else:
            yield key, *best


COMPARED = ("sent_bytes", "received_bytes")
"""Columns of a call that both recordings state."""


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Kineto trace"),
    call=("Int64", "number of the call in the Kineto trace"),
    node=("Int64", "number of the node in the Execution Trace"),
    collective=("String", "canonical collective, as Kineto has it"),
    et_collective=("String", "canonical collective, as the Execution Trace has it"),
    sent_bytes=("Int64", "bytes sent by this rank, as Kineto has it"),
    et_sent_bytes=("Int64", "bytes sent by this rank, as the Execution Trace has it"),
    received_bytes=("Int64", "bytes received by this rank, as Kineto has it"),
    et_received_bytes=("Int64", "bytes received by this rank, as the Execution Trace has it"),
    agrees=("Boolean", "whether both are the same; null if one of them has no size"),
)
def et_agreement(et_calls: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One communication call that both an Execution Trace and a Kineto trace recorded."""
    linked_calls = et_calls.drop_nulls("call_start_ns").select(
        pl.col("call_trace").alias("trace"),
        pl.col("call_start_ns").alias("start_ns"),
        pl.col("call_stream").alias("stream"),
        "node",
        *(pl.col(name).alias(f"et_{name}") for name in ("collective", *COMPARED)),
    )
    both = calls.join(linked_calls, on=["trace", "start_ns", "stream"], how="inner", maintain_order="left")
    same_call = pl.col("collective") == pl.col("et_collective")
    differ = [pl.col(name) != pl.col(f"et_{name}") for name in COMPARED]
    is_known = pl.any_horizontal(difference.is_not_null() for difference in differ)
    same_size = ~pl.any_horizontal(difference.fill_null(value=False) for difference in differ)
    agrees = pl.when(is_known | ~same_call).then(same_call & same_size)
    return both.with_columns(agrees.alias("agrees")).select(*DERIVED.get("et_agreement").table.columns)
