"""Work: what occupied the device, or on a run without one the CPU, and of which kind."""

from __future__ import annotations

from ccl_bench.analysis.communication import naming
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.intervals import merged
from ccl_bench.frames import pl

COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"

HOST_COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms")
"""CPU operators that start or await communication; time in them is not computing."""


@derived(
    reads={
        "kernels": ("start_ns", "end_ns", "name", "collective", "stream", "blocks_per_sm", "occupancy_pct"),
        "memcpy": ("start_ns", "end_ns", "stream"),
        "cpu_ops": ("start_ns", "end_ns", "name", "process", "thread"),
    },
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    kind=("String", "`compute`, `communication` or `memory`"),
    collective=("String", "canonical collective; null unless the kind is communication"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    occupied=("Float64", "share of the multiprocessors that its blocks can occupy, 0 to 1; else null"),
    occupancy_pct=("Float64", "estimated achieved occupancy, 0 to 100 %; else null"),
)
def work(
    kernels: pl.DataFrame, memcpy: pl.DataFrame, cpu_ops: pl.DataFrame, annotations: pl.DataFrame
) -> pl.DataFrame:
    """One interval in which something was worked on.

    On a device: kernels, copies and memory sets, never synchronisation events. On a run without
    a device the CPU is the device: `gloo:*` ranges are communication, operators that call no
    other operator are compute.
    """
    if kernels.height or memcpy.height:
        return _device_work(kernels, memcpy)
    return _host_work(cpu_ops, annotations)


def _device_work(kernels: pl.DataFrame, memcpy: pl.DataFrame) -> pl.DataFrame:
    collective, per_sm = naming.kernel_collectives(kernels), pl.col("blocks_per_sm")
    ran = kernels.select(
        "start_ns",
        "end_ns",
        pl.when(collective.is_null()).then(pl.lit(COMPUTE)).otherwise(pl.lit(COMMUNICATION)).alias("kind"),
        collective.alias("collective"),
        "stream",
        pl.when(per_sm >= 0).then(per_sm.clip(upper_bound=1.0)).alias("occupied"),
        pl.when(pl.col("occupancy_pct").is_between(0, 100)).then("occupancy_pct"),
    )
    moved = memcpy.select(
        "start_ns",
        "end_ns",
        pl.lit(MEMORY).alias("kind"),
        pl.lit(None, dtype=pl.String).alias("collective"),
        "stream",
        pl.lit(None, dtype=pl.Float64).alias("occupied"),
        pl.lit(None, dtype=pl.Float64).alias("occupancy_pct"),
    )
    return pl.concat([ran, moved]).sort("start_ns", maintain_order=True)


def gloo_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges on the CPU in which gloo communicated."""
    on_cpu = annotations.filter(~pl.col("on_device"))
    return on_cpu.filter(pl.col("name").cast(pl.String).str.starts_with(naming.GLOO))


def _host_work(cpu_ops: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    ranges = gloo_ranges(annotations)
    collective = naming.call_collectives(ranges["name"]).fill_null(naming.OTHER)
    communicated = ranges.select(
        "start_ns", "end_ns", pl.lit(COMMUNICATION).alias("kind"), collective.alias("collective"), "thread"
    )
    computed = _outside(_leaves(cpu_ops), ranges).select(
        "start_ns",
        "end_ns",
        pl.lit(COMPUTE).alias("kind"),
        pl.lit(None, dtype=pl.String).alias("collective"),
        "thread",
    )
    return (
        pl.concat([communicated, computed])
        .rename({"thread": "stream"})
        .with_columns(
            pl.lit(None, dtype=pl.Float64).alias("occupied"),
            pl.lit(None, dtype=pl.Float64).alias("occupancy_pct"),
        )
        .sort("start_ns", maintain_order=True)
    )


def _leaves(cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators in which no other operator ran, without those of communication.

    In the order (thread, start, longest first) the operator after a caller is its first callee.
    """
    ordered = cpu_ops.sort("process", "thread", "start_ns", "end_ns", descending=[False, False, False, True])
    follower = pl.col("start_ns").shift(-1).over("process", "thread")
    names = ordered["name"].cast(pl.String)
    communicates = pl.any_horizontal(names.str.starts_with(prefix) for prefix in HOST_COMMUNICATION)
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
