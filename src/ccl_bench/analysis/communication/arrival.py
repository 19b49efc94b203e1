"""In which order the members of a collective came to it, where the clocks are good enough to tell."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_polars import pl


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    group=("String", "process group"),
    number=("Int64", "number of the collective on its group"),
    collective=("String", "canonical collective"),
    present=("Int64", "members whose call was found"),
    skew_ns=("Int64", "from the first to the last arrival, ns; null where clocks do not compare"),
    residual_ns=("Int64", "the largest residual of a member's clock, ns; null where clocks do not compare"),
    order=("List(Int64)", "ranks in order of arrival; null where the residual exceeds the skew"),
    last_rank=("Int64", "the rank that came last; null where the residual exceeds its distance to the next"),
)
def arrivals(matched: pl.DataFrame, clock_offsets: pl.DataFrame) -> pl.DataFrame:
    """One collective that at least two ranks recorded: who came when, on aligned clocks.

    Clocks compare where collectives connect all members. Waiting times need none of this: a
    member's wait tells its lateness without a clock.
    """
    clocks = clock_offsets.select("iteration", "rank", "offset_ns", "residual_ns", "island")
    placed = matched.join(
        clocks, on=["iteration", "rank"], how="left", nulls_equal=True, maintain_order="left"
    ).with_columns((pl.col("start_ns") - pl.col("offset_ns")).alias("arrival_ns"))
    start = pl.col("arrival_ns")
    told = (
        placed.sort("arrival_ns", maintain_order=True)
        .group_by("iteration", "group", "number")
        .agg(
            pl.col("collective", "present").first(),
            (start.max() - start.min()).alias("skew_ns"),
            (start.max() - start.top_k(2).min()).alias("margin_ns"),
            pl.col("residual_ns").max(),
            pl.col("rank").alias("order"),
            (start.is_not_null().all() & (pl.col("island").n_unique() == 1)).alias("comparable"),
        )
    )
    known = {name: pl.when("comparable").then(name).alias(name) for name in ("skew_ns", "residual_ns")}
    is_told = pl.col("comparable") & (pl.col("skew_ns") >= pl.col("residual_ns"))
    has_last = pl.col("comparable") & (pl.col("margin_ns") > pl.col("residual_ns"))
    return (
        told.select(
            "iteration",
            "group",
            "number",
            "collective",
            "present",
            *known.values(),
            pl.when(is_told).then("order").alias("order"),
            pl.when(has_last).then(pl.col("order").list.last()).alias("last_rank"),
        )
        .select(*DERIVED.get("arrivals").table.columns)
        .sort("iteration", "group", "number")
    )
