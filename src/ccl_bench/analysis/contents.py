"""What a trace contains: its span, counts, and the usual lengths of its kernels and operators."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
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


MOST_NAMES = 30
"""Names that are compared between traces, the most frequent ones: a few in common show the unit of times."""

_READ = ("start_ns", "end_ns", "name")


@derived(
    reads={"kernels": _READ, "cpu_ops": _READ},
    table=("String", "`kernels` or `cpu_ops`"),
    name=("String", "name as recorded"),
    median_ns=("Float64", "median length of those that take any time, ns"),
)
def name_lengths(kernels: pl.DataFrame, cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """One of the most frequent names of one trace: how long its kernels or operators usually take."""
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("length_ns")
    parts = [
        rows.select("name", length)
        .filter(pl.col("length_ns") > 0)
        .group_by("name")
        .agg(pl.len(), pl.col("length_ns").median().alias("median_ns"))
        .with_columns(pl.col("name").cast(pl.String), table=pl.lit(table))
        .sort("len", "name", descending=[True, False])
        .head(MOST_NAMES)
        for table, rows in (("kernels", kernels), ("cpu_ops", cpu_ops))
    ]
    return DERIVED.get("name_lengths").table.frame(pl.concat(parts).drop("len").to_dict())
