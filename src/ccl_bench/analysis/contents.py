"""Counts of a trace's content, which describe it without reading every row."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.base.lazy_imports import pl


@derived(
    start_ns=("Int64", "start of the first thing recorded, ns; null in an empty trace"),
    end_ns=("Int64", "end of the last thing recorded, ns; null in an empty trace"),
    kernels=("Int64", "kernels"),
    copies=("Int64", "copies and memory sets"),
    cpu_ops=("Int64", "operators on the CPU"),
    calls=("Int64", "communication calls"),
)
def contents(
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    annotations: pl.DataFrame,
    calls: pl.DataFrame,
) -> pl.DataFrame:
    """One trace: what it spans, and how much of each kind is in it."""
    spans = pl.concat(
        [table.select("start_ns", "end_ns") for table in (kernels, memcpy, cpu_ops, annotations)]
    )
    return spans.select(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.lit(kernels.height, dtype=pl.Int64).alias("kernels"),
        pl.lit(memcpy.height, dtype=pl.Int64).alias("copies"),
        pl.lit(cpu_ops.height, dtype=pl.Int64).alias("cpu_ops"),
        pl.lit(calls.height, dtype=pl.Int64).alias("calls"),
    )


@derived(
    collective=("String", "canonical collective"),
    calls=("Int64", "calls in the trace"),
)
def call_counts(calls: pl.DataFrame) -> pl.DataFrame:
    """One collective of one trace: how often it was called, steps or not."""
    return calls.group_by("collective").agg(pl.len().cast(pl.Int64).alias("calls")).sort("collective")
