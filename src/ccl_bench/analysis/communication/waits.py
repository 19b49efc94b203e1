"""How long each rank waited for others in each step, and whom it kept waiting."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.frames import pl


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    step=("Int64", "step"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension of the group"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    collectives=("Int64", "collectives whose wait can be told"),
    wait_ns=("Int64", "time waited for other members, ns"),
    arrived_last=("Int64", "collectives that this rank alone was the last to reach"),
    caused_ns=("Int64", "sum over those of the longest wait of another member, ns"),
    complete=("Boolean", "whether all members of the group were recorded, as far as its size is known"),
)
def waits(matched: pl.DataFrame) -> pl.DataFrame:
    """One rank in one group in one step.

    The rank that waits least is late, the one that waits most is its victim. A tie has no last rank.
    Of a step, only those collectives count that most members were recorded in, so that a rank
    whose recording broke off does not seem to wait less than the others.
    """
    return (
        counted(matched)
        .group_by("iteration", "step", "group", "dimension", "trace", "rank", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            pl.col("wait_ns").sum(),
            pl.col("last").sum().cast(pl.Int64).alias("arrived_last"),
            pl.col("longest_ns").filter("last").sum().alias("caused_ns"),
            (pl.col("present") >= pl.col("size")).fill_null(value=False).all().alias("complete"),
        )
        .sort("iteration", "step", "group", "rank", "trace")
    )


def counted(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the members of collectives whose waits count, with who was `last` and the `longest_ns` wait."""
    key = ["iteration", "group", "number"]
    told = matched.drop_nulls(["wait_ns", "step"])
    most = pl.col("present").max().over("iteration", "step", "group")
    is_last = pl.col("wait_ns") == 0
    return told.filter(pl.col("present") == most).with_columns(
        (is_last & (is_last.sum().over(key) == 1)).alias("last"),
        pl.col("wait_ns").max().over(key).alias("longest_ns"),
    )


def by_rank_and_step(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of each rank in each step over all its groups.

    Ranks that are not known are told apart by their traces.
    """
    return (
        waits.group_by("iteration", "step", "trace", "rank")
        .agg(pl.col("collectives", "wait_ns", "arrived_last", "caused_ns").sum())
        .sort("iteration", "step", "rank", "trace")
    )
