"""How long each step took on each rank."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.base.lazy_polars import pl


@derived(
    across_ranks=True,
    iteration=("Int64", "number of the recording window, where there are several"),
    rank=("Int64", "rank; null where the source does not tell ranks apart"),
    step=("Int64", "number of the step"),
    duration_ns=("Int64", "length of the step as recorded, ns"),
    source=("String", "file, or how the step was found in the trace"),
)
def step_times(steps: pl.DataFrame) -> pl.DataFrame:
    """One step on one rank: how long it took, from a side file where the run has one."""
    return steps.select(
        "iteration", "rank", "step", (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"), "source"
    )


def slowest(step_times: pl.DataFrame) -> pl.DataFrame:
    """Return one row a step: the duration on the slowest rank, in order."""
    return (
        step_times.group_by("iteration", "step", maintain_order=True)
        .agg(
            pl.col("duration_ns").max(),
            pl.col("rank").get(pl.col("duration_ns").arg_max()).alias("slowest_rank"),
            pl.col("rank").n_unique().alias("ranks"),
        )
        .sort("iteration", "step", nulls_last=False)
    )
