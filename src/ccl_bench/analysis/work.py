"""Work: what occupied the device, or on a run without one the CPU, and of which kind."""

from __future__ import annotations

from ccl_bench.analysis.communication import naming
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.device_work import COMMUNICATION, COMPUTE, FUSED, MEMORY, TORCH
from ccl_bench.analysis.intervals import merged
from ccl_bench.base.lazy_polars import pl

__all__ = ["COMMUNICATION", "COMPUTE", "FUSED", "MEMORY"]

COMPUTING = (COMPUTE, FUSED)
"""Kinds of work in which a rank computes, alone or communicating in the same kernel."""


@derived(
    reads={"cpu_ops": ("start_ns", "end_ns", "name", "process", "thread")},
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    kind=("String", "`compute`, `communication`, `fused` (both in one) or `memory`"),
    is_kernel=("Boolean", "whether a kernel or an operator ran; else a copy engine worked"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    occupied=("Float64", "share of the multiprocessors that its blocks can occupy, 0 to 1; else null"),
    occupancy_pct=("Float64", "estimated achieved occupancy, 0 to 100 %; else null"),
)
def work(device_work: pl.DataFrame, cpu_ops: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """One interval in which something was worked on; which collective it was, `calls` says.

    On a device: kernels, copies and memory sets, never synchronisation events. On a run without
    a device the CPU is the device: `gloo:*` ranges are communication, operators that call no
    other operator are compute.
    """
    if device_work.height:
        return device_work.select(*DERIVED.get("work").table.columns)
    return _host_work(cpu_ops, annotations)


def gloo_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges on the CPU in which gloo communicated."""
    on_cpu = annotations.filter(~pl.col("on_device"))
    return on_cpu.filter(pl.col("name").cast(pl.String).str.starts_with(naming.GLOO))


def _host_work(cpu_ops: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    ranges = gloo_ranges(annotations)
    communicated = ranges.select("start_ns", "end_ns", pl.lit(COMMUNICATION).alias("kind"), "thread")
    computed = _outside(_leaves(cpu_ops), ranges).select(
        "start_ns",
        "end_ns",
        pl.lit(COMPUTE).alias("kind"),
        "thread",
    )
    return (
        pl.concat([communicated, computed])
        .rename({"thread": "stream"})
        .with_columns(
            pl.lit(value=True).alias("is_kernel"),
            pl.lit(None, dtype=pl.Float64).alias("occupied"),
            pl.lit(None, dtype=pl.Float64).alias("occupancy_pct"),
        )
        .sort("start_ns", maintain_order=True)
        .select(*DERIVED.get("work").table.columns)
    )


def _leaves(cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators in which no other operator ran, without those of communication.

    In the order (thread, start, longest first) the operator after a caller is its first callee.
    """
    ordered = cpu_ops.sort("process", "thread", "start_ns", "end_ns", descending=[False, False, False, True])
    follower = pl.col("start_ns").shift(-1).over("process", "thread")
    names = ordered["name"].cast(pl.String)
    communicates = pl.any_horizontal(names.str.starts_with(prefix) for prefix in TORCH)
    is_leaf = (follower >= pl.col("end_ns")).fill_null(value=True)
    return ordered.filter(is_leaf & ~communicates)


def _outside(operators: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that are not part of a communication range on their own thread."""
    if ranges.is_empty():
        return operators
    enclosing = merged(ranges, "thread").rename({"end_ns": "range_end_ns"}).sort("start_ns")
    placed = operators.sort("start_ns").join_asof(
        enclosing.with_columns(pl.col("start_ns").alias("range_start_ns")),
        on="start_ns",
        by="thread",
        strategy="backward",
        check_sortedness=False,
    )
    return placed.filter((pl.col("start_ns") >= pl.col("range_end_ns")).fill_null(value=True))
