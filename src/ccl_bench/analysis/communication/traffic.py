"""Traffic: calls of the whole run by parallelism dimension, and windows of one dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.groups import UNKNOWN, WORLD, mesh, strides
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.base.lazy_imports import pl

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
    spans_nodes=("Boolean", "whether the call crosses nodes; null if unknown"),
    peer=("Int64", "the other rank of a send or receive"),
    size_bytes=("Int64", "message as nccl-tests counts it, bytes; null if it is unattributed"),
    sent_bytes=("Int64", "bytes sent by this rank"),
    received_bytes=("Int64", "bytes received by this rank"),
    own_sizes=("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    uneven=("Boolean", "whether parts of an all-to-all differ, or may; null if unknown"),
    is_paired=("Boolean", "whether the operator that started a range of gloo is known; null for kernels"),
)
def traffic(known_calls: pl.DataFrame, groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One communication call of one rank.

    A message between two ranks in a group that says nothing of its dimension serves the axis
    of the mesh along which the two ranks differ.
    """
    return with_dimensions(known_calls, groups, facts).select(*DERIVED.get("traffic").table.columns)


def with_dimensions(calls: pl.DataFrame, groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return calls with the dimension that each serves, the members that take part, and whether nodes do."""
    joined = calls.join(
        groups.select("group", "dimension", "size", "spans_nodes"),
        on="group",
        how="left",
        maintain_order="left",
    )
    axes = mesh(facts)
    node = facts.devices_per_node.value if facts.devices_per_node else None
    pairs = [
        (rank, peer, axis_between(rank, peer, axes), None if node is None else rank // node != peer // node)
        for rank, peer in joined.select("rank", "peer").drop_nulls().unique().iter_rows()
    ]
    schema = {"rank": pl.Int64, "peer": pl.Int64, "pair_dimension": pl.String, "pair_spans_nodes": pl.Boolean}
    by_pair = pl.DataFrame(pairs, schema=schema, orient="row")
    with_axes = joined.join(by_pair, on=["rank", "peer"], how="left", maintain_order="left")
    vague = pl.col("dimension").is_null() | pl.col("dimension").is_in([UNKNOWN, WORLD])
    return with_axes.with_columns(
        pl.when(vague & pl.col("pair_dimension").is_not_null())
        .then("pair_dimension")
        .otherwise(pl.col("dimension").fill_null(UNKNOWN))
        .alias("dimension"),
        pl.when(pl.col("peer").is_not_null()).then(2).otherwise("size").cast(pl.Int64).alias("size"),
        pl.coalesce("pair_spans_nodes", "spans_nodes").alias("spans_nodes"),
    )


def axis_between(rank: int, peer: int, axes: dict[str, int]) -> str | None:
    """Return the one axis of a mesh along which two ranks differ, or None if there is not just one."""
    distances = strides(axes)
    differing = [
        axis
        for axis, size in axes.items()
        if rank // distances[axis] % size != peer // distances[axis] % size
    ]
    return differing[0] if len(differing) == 1 else None


_PLACE = ["trace", "step"]


def traffic_windows(traffic: pl.DataFrame) -> pl.DataFrame:
    """Return one row a window of one rank and step, in order of start.

    Columns: `trace`, `rank`, `step`, `dimension`, `start_ns`, `end_ns`, `calls`, `bytes`, `communication_ns`
    (time with at least one call) and `gap_ns` to the start of the next window of another dimension in
    the same step: negative where that starts before this one ends, null if none follows.
    """
    line = [*_PLACE, "dimension"]
    busy = merge_intervals(traffic, *line).sort(*line, "start_ns")
    before = pl.col("end_ns").shift(1).over(line).alias("before_ns")
    ordered = _with_gap_use(busy.with_columns(before)).sort(*line, "start_ns")
    # Intervals of one dimension are one window unless another dimension communicates between them.
    windows = (
        ordered.with_columns(window=(pl.col("before_ns").is_null() | pl.col("is_used")).cum_sum())
        .group_by(*line, "window", maintain_order=True)
        .agg(
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            communication_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
        .sort(*_PLACE, "start_ns", "end_ns", "dimension")
    )
    calls = (
        traffic.filter(pl.col("start_ns") < pl.col("end_ns"))
        .sort("start_ns")
        .join_asof(
            windows.select(*line, "start_ns", "window").sort("start_ns"),
            on="start_ns",
            by=line,
            strategy="backward",
            check_sortedness=False,
        )
        .group_by("window")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            known_sum("size_bytes").alias("bytes"),
            pl.col("rank").first(),
        )
    )
    following, next_ns = pl.col("dimension").shift(-1).over(_PLACE), pl.col("start_ns").shift(-1).over(_PLACE)
    next_other_ns = pl.when(following != pl.col("dimension")).then(next_ns).backward_fill().over(_PLACE)
    return (
        windows.join(calls, on="window", how="left", maintain_order="left")
        .with_columns(gap_ns=next_other_ns - pl.col("end_ns"))
        .select(
            *_PLACE, "rank", "dimension", "start_ns", "end_ns", "calls", "bytes", "communication_ns", "gap_ns"
        )
    )


def known_sum(column: str) -> pl.Expr:
    """Return the sum of a column, null if none of its numbers is known."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())


def _with_gap_use(busy: pl.DataFrame) -> pl.DataFrame:
    """Mark whether another dimension communicates between `before_ns` and `start_ns` of each interval.

    It does where more intervals started before the gap ends than ended before the gap begins: those of
    the same dimension are as many.
    """
    count = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(_PLACE)
    started = busy.sort("start_ns").select(*_PLACE, at="start_ns", started=count)
    ended = busy.sort("end_ns").select(*_PLACE, at="end_ns", ended=count)
    by_end = busy.sort("start_ns").join_asof(
        started,
        left_on="start_ns",
        right_on="at",
        by=_PLACE,
        allow_exact_matches=False,
        check_sortedness=False,
    )
    both = by_end.sort("before_ns").join_asof(
        ended, left_on="before_ns", right_on="at", by=_PLACE, check_sortedness=False
    )
    return both.with_columns((pl.col("started") > pl.col("ended")).fill_null(value=False).alias("is_used"))
