"""Kinds of communication calls: what they have in common, how long they wait and move data, how fast."""

from __future__ import annotations

from ccl_bench.analysis.communication.bandwidth import factors
from ccl_bench.analysis.communication.call_parts import PARTS, TRANSFER
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl

_KIND = ("collective", "dtype", "size_bytes", "dimension", "size")


@derived(
    across_ranks=True,
    collective=("String", "canonical collective"),
    dtype=("String", "element type as recorded; null where it is unknown"),
    size_bytes=("Int64", "message as nccl-tests counts it, bytes; null where it is unknown"),
    dimension=("String", "parallelism dimension"),
    size=("Int64", "members of the group, 2 for a message between two ranks; null where that is unknown"),
    calls=("Int64", "calls in steps, all ranks"),
    duration_ns=("Int64", "sum of their durations, ns"),
    waiting_ns=("Int64", "of these, time known to be waiting, ns"),
    transfer_ns=("Int64", "of these, time known to be transfer, ns"),
    unknown_ns=("Int64", "of these, time that is either, ns"),
    collectives=("Int64", "collectives whose arrivals compare: a call of several ranks is one"),
    skew_ns=("Float64", "median over these from the first to the last arrival, ns; null without any"),
    bus_bandwidth=("Float64", "median bus bandwidth of a call, GB/s; null where it has none"),
    is_wait_free=("Boolean", "whether that is on the transfer of every call; else on whole durations"),
)
def call_kinds(
    traffic: pl.DataFrame,
    known_calls: pl.DataFrame,
    call_parts: pl.DataFrame,
    matched: pl.DataFrame,
    arrivals: pl.DataFrame,
) -> pl.DataFrame:
    """One kind of call in steps: a collective, an element type, a size and a group of one dimension."""
    place = ["trace", "call"]
    length = pl.col("end_ns") - pl.col("start_ns")
    lengths = call_parts.group_by(place).agg(
        length.filter(pl.col("part") == part).sum().alias(f"{part}_ns") for part in PARTS
    )
    number = ["iteration", "group", "number"]
    skews = matched.select(*place, *number).join(
        arrivals.select(*number, "skew_ns"), on=number, nulls_equal=True, maintain_order="left"
    )
    calls = traffic.drop_nulls("step")
    tables = (known_calls.select(*place, "dtype"), lengths, skews.drop("iteration", "group"))
    for table in tables:
        calls = calls.join(table, on=place, how="left", maintain_order="left")
    timed = calls.with_columns(duration_ns=length, bus_factor=factors(calls))
    free = (pl.col("transfer_ns") > 0) & (pl.col("unknown_ns") == 0)
    is_free = free.fill_null(value=False).all()
    moved = pl.col("bus_factor") * pl.col("size_bytes")
    sums = [pl.col(f"{part}_ns").sum() for part in PARTS]
    of_collective = pl.col("skew_ns").filter(pl.col("skew_ns").is_not_null() & _is_first())
    rows = timed.group_by(_KIND).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("duration_ns").sum(),
        *sums,
        of_collective.len().cast(pl.Int64).alias("collectives"),
        of_collective.median().alias("skew_ns"),
        pl.when(is_free)
        .then((moved / pl.col(f"{TRANSFER}_ns")).median())
        .otherwise((moved / pl.col("duration_ns")).filter(pl.col("duration_ns") > 0).median())
        .alias("bus_bandwidth"),
        is_free.alias("is_wait_free"),
    )
    ordered = rows.sort("duration_ns", *_KIND, descending=[True] + [False] * len(_KIND), nulls_last=True)
    return ordered.select(*DERIVED.get("call_kinds").table.columns)


def _is_first() -> pl.Expr:
    """Whether a call is the first member of its collective among calls of its kind."""
    return pl.struct("iteration", "group", "number").is_first_distinct()
