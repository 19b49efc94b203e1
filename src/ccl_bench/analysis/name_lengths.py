"""Usual lengths of kernels and operators by name, which the ranks of a job have in common."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl

MOST_NAMES = 30
"""Names that are compared between traces, the most frequent ones."""

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
