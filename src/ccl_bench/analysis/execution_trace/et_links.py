"""Which Kineto trace each Execution Trace of a run belongs to, and how many operators both have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.execution_trace.linking import Link, linked, no_pairs
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Iterator


@derived(
    across_ranks=True,
    rows_of="linkable_nodes",
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Execution Trace"),
    op_trace=("Int64", "the Kineto trace; null where none fits"),
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
    whose = ["iteration", "rank", "trace"]
    kineto = ops.select(whose).unique(maintain_order=True).rows()
    for key in nodes.select(whose).unique(maintain_order=True).sort("trace").rows():
        own = nodes.filter(pl.col("trace") == key[2])
        others = [k[2] for k in kineto if k[1] == key[1] and (key[0] is None or k[0] == key[0])]
        links = [(other, linked(own, ops.filter(pl.col("trace") == other))) for other in others]
        best = max(links, key=lambda link: link[1].pairs.height, default=None)
        if best is None or best[1].rule == "none":
            yield (
                key,
                None,
                best[1] if best else Link(no_pairs(), "none", None, int(own["is_operator"].sum()), 0),
            )
        else:
            yield key, *best
