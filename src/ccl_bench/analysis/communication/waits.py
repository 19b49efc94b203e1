"""How long each rank waited for others in each step, and whom it kept waiting."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.base.lazy_imports import pl

LACKING_SHARE = 0.01
"""Where no step is whole, a trace may lack this share of its collectives and still count."""


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    step=("Int64", "step"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension of the group"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    collectives=("Int64", "collectives whose wait is known"),
    wait_ns=("Int64", "time waited for other members, ns"),
    arrived_last=("Int64", "collectives that this rank alone was the last to reach"),
    caused_ns=("Int64", "sum over those of the longest wait of another member, ns"),
    complete=("Boolean", "whether all members of this group, and of others of the rank, were recorded"),
)
def waits(matched: pl.DataFrame) -> pl.DataFrame:
    """One rank in one group in one step.

    The rank that waits least is late, the one that waits most is its victim. A tie has no last rank.
    Only steps count in which no trace lacks a collective that others of its group have: a rank whose
    recording broke off would seem to wait less than the others. Where no step is whole, the traces
    that lack more than a few collectives are left out, as if their files were missing.
    """
    return (
        attributable_waits(matched)
        .group_by("iteration", "step", "group", "dimension", "trace", "rank", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            pl.col("wait_ns").sum(),
            pl.col("last").sum().cast(pl.Int64).alias("arrived_last"),
            pl.col("longest_ns").filter("last").sum().alias("caused_ns"),
            (pl.col("complete") & (pl.col("present") >= pl.col("size")).fill_null(value=False)).all(),
        )
        .sort("iteration", "step", "group", "rank", "trace")
    )


def attributable_waits(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the members of collectives whose waits count, with who was `last` and the `longest_ns` wait."""
    key = ["iteration", "group", "number"]
    known = _of_whole_traces(matched.drop_nulls(["wait_ns", "step"]), key)
    is_last = pl.col("wait_ns") == 0
    return known.with_columns(
        (is_last & (is_last.sum().over(key) == 1)).alias("last"),
        pl.col("wait_ns").max().over(key).alias("longest_ns"),
    )


def _of_whole_traces(known: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return the members in whole steps, else those of traces that lack next to nothing in the step.

    Of the latter those collectives count that all of these traces have.
    """
    whole = known.filter(pl.col("gaps") == 0)
    if whole.height or known.is_empty():
        return whole
    own = pl.len().over("iteration", "step", "trace")
    present = pl.len().over(key).cast(pl.Int64).alias("present")
    others = known.filter(pl.col("lacks") <= LACKING_SHARE * own).with_columns(present)
    most = pl.col("present").max().over("iteration", "group", "step")
    return others.filter((pl.col("present") > 1) & (pl.col("present") == most)).with_columns(
        pl.col("wait_ns") - pl.col("wait_ns").min().over(key)
    )


def in_steps_of(table: pl.DataFrame, of: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `table` whose step has rows in `of`."""
    steps = of.select("iteration", "step").unique()
    return table.join(steps, on=["iteration", "step"], how="semi", nulls_equal=True, maintain_order="left")


def waits_by_rank_and_step(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of each rank in each step over all its groups.

    Ranks that are not known count by trace.
    """
    return (
        waits.group_by("iteration", "step", "trace", "rank")
        .agg(pl.col("collectives", "wait_ns", "arrived_last", "caused_ns").sum())
        .sort("iteration", "step", "rank", "trace")
    )
