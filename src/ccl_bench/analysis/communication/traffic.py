"""Communication calls of the whole run, each with the parallelism dimension it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.parallelism import UNKNOWN, WORLD, mesh, strides
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    call=("Int64", "number of the call in its trace"),
    step=("Int64", "step in whose device window the call started"),
    order=("Int64", "running number of the call on its group in this trace"),
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    collective=("String", "canonical collective"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension: an axis, `dp`, `world` or `unknown`"),
    size=("Int64", "members of the group, 2 for a message between two ranks"),
    spans_nodes=("Boolean", "whether the call crosses nodes; null where that is not known"),
    peer=("Int64", "the other rank of a send or receive"),
    size_bytes=("Int64", "message as nccl-tests counts it, bytes; null where it is unattributed"),
    sent_bytes=("Int64", "bytes sent by this rank"),
    received_bytes=("Int64", "bytes received by this rank"),
    own_sizes=("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    uneven=("Boolean", "whether parts of an all-to-all differ, or may; null where nothing says"),
    is_paired=("Boolean", "whether the operator that started a range of gloo is known; null for kernels"),
)
def traffic(known_calls: pl.DataFrame, groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One communication call of one rank.

    A message between two ranks in a group that says nothing of its dimension serves the axis
    of the mesh along which the two ranks differ.
    """
    joined = known_calls.join(
        groups.select("group", "dimension", "size", "spans_nodes"),
        on="group",
        how="left",
        maintain_order="left",
    )
    pairs = joined.filter(pl.col("peer").is_not_null()).select("rank", "peer").unique().drop_nulls()
    by_pair = _pairs(pairs, facts)
    told = joined.join(by_pair, on=["rank", "peer"], how="left", maintain_order="left")
    vague = pl.col("dimension").is_null() | pl.col("dimension").is_in([UNKNOWN, WORLD])
    return told.with_columns(
        pl.when(vague & pl.col("pair_dimension").is_not_null())
        .then("pair_dimension")
        .otherwise(pl.col("dimension").fill_null(UNKNOWN))
        .alias("dimension"),
        pl.when(pl.col("peer").is_not_null()).then(2).otherwise("size").cast(pl.Int64).alias("size"),
        pl.coalesce("pair_spans_nodes", "spans_nodes").alias("spans_nodes"),
    ).select(*DERIVED.get("traffic").table.columns)


def _pairs(pairs: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return the axis along which each pair of ranks differs, and whether it crosses nodes."""
    axes = mesh(facts)
    node = facts.devices_per_node.value if facts.devices_per_node else None
    rows = [
        (rank, peer, axis_between(rank, peer, axes), None if node is None else rank // node != peer // node)
        for rank, peer in pairs.iter_rows()
    ]
    schema = {"rank": pl.Int64, "peer": pl.Int64, "pair_dimension": pl.String, "pair_spans_nodes": pl.Boolean}
    return pl.DataFrame(rows, schema=schema, orient="row")


def axis_between(rank: int, peer: int, axes: dict[str, int]) -> str | None:
    """Return the one axis of a mesh along which two ranks differ, or None where there is not just one."""
    distances = strides(axes)
    differing = [
        axis
        for axis, size in axes.items()
        if rank // distances[axis] % size != peer // distances[axis] % size
    ]
    return differing[0] if len(differing) == 1 else None
