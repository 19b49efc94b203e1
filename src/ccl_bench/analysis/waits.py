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
    rank=("Int64", "rank"),
    collectives=("Int64", "collectives whose wait can be told"),
    wait_ns=("Int64", "time waited for other members, ns"),
    arrived_last=("Int64", "collectives that this rank alone was the last to reach"),
    caused_ns=("Int64", "sum over those of the longest wait of another member, ns"),
    complete=("Boolean", "whether all members of the group were recorded"),
)
def waits(matched: pl.DataFrame) -> pl.DataFrame:
    """One rank in one group in one step.

    The rank that waits least is late, the one that waits most is its victim. A tie has no last rank.
    """
    key = ["iteration", "group", "number"]
    told = matched.drop_nulls(["wait_ns", "step"])
    is_last = pl.col("wait_ns") == 0
    marked = told.with_columns(
        (is_last & (is_last.sum().over(key) == 1)).alias("last"),
        pl.col("wait_ns").max().over(key).alias("longest_ns"),
    )
    return (
        marked.group_by("iteration", "step", "group", "dimension", "rank", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            pl.col("wait_ns").sum(),
            pl.col("last").sum().cast(pl.Int64).alias("arrived_last"),
            pl.col("longest_ns").filter("last").sum().alias("caused_ns"),
            (pl.col("present") >= pl.col("size").fill_null(0)).all().alias("complete"),
        )
        .sort("iteration", "step", "group", "rank")
    )


def by_rank_and_step(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of each rank in each step over all its groups."""
    return (
        waits.group_by("iteration", "step", "rank")
        .agg(pl.col("collectives", "wait_ns", "arrived_last", "caused_ns").sum())
        .sort("iteration", "step", "rank")
    )
