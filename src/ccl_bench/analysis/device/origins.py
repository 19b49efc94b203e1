"""Where work was started: each piece of work with the call on the CPU that launched it."""

from __future__ import annotations

from ccl_bench.analysis.communication import naming
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.work import COMMUNICATION, COMPUTE, MEMORY
from ccl_bench.frames import pl


@derived(
    reads={
        "kernels": ("start_ns", "end_ns", "name", "collective", "stream", "correlation"),
        "memcpy": ("start_ns", "end_ns", "stream", "correlation"),
        "launches": ("start_ns", "end_ns", "thread", "correlation"),
    },
    start_ns=("Int64", "start of the work, ns"),
    end_ns=("Int64", "end of the work, ns"),
    kind=("String", "`compute`, `communication` or `memory`"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    on_device=("Boolean", "whether a device did it; on a run without one the CPU does all"),
    correlation=("Int64", "launch correlation; null on the CPU"),
    launch_ns=("Int64", "start of the call that launched it, ns; null where that is not recorded"),
    launch_end_ns=("Int64", "end of that call, ns"),
    thread=("Int64", "CPU thread of that call"),
)
def origins(
    work: pl.DataFrame,
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    launches: pl.DataFrame,
    collectives: pl.DataFrame,
) -> pl.DataFrame:
    """One interval of work with its launch.

    On a device the two are joined by their correlation; all kernels of a CUDA graph have the
    same launch. Without a device an operator is its own launch, and a `gloo:*` range was launched
    by the operator that started it: the k-th by the k-th, where there are as many.
    """
    if kernels.height or memcpy.height:
        return _on_device(kernels, memcpy, launches)
    return _on_host(work, collectives)


def _on_device(kernels: pl.DataFrame, memcpy: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    communicates = naming.kernel_collectives(kernels).is_not_null()
    kind = pl.when(communicates).then(pl.lit(COMMUNICATION)).otherwise(pl.lit(COMPUTE))
    columns = ("start_ns", "end_ns", "kind", "stream", "correlation")
    ran = kernels.with_columns(kind.alias("kind")).select(columns)
    moved = memcpy.with_columns(pl.lit(MEMORY).alias("kind")).select(columns)
    work = pl.concat([ran, moved]).sort("start_ns", maintain_order=True)
    started_some = launches["correlation"].is_in(work["correlation"].implode())
    calls = launches.filter((launches["correlation"] > 0) & started_some).select(
        "correlation", launch_ns="start_ns", launch_end_ns="end_ns", thread="thread"
    )
    first = calls.unique("correlation", keep="first", maintain_order=True)
    return work.join(first, on="correlation", how="left", maintain_order="left").select(
        *columns[:4],
        pl.lit(value=True).alias("on_device"),
        "correlation",
        "launch_ns",
        "launch_end_ns",
        "thread",
    )


def _on_host(work: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    is_call = pl.col("kind") == COMMUNICATION
    computed = work.filter(~is_call).with_columns(
        launch_ns=pl.col("start_ns"), launch_end_ns=pl.col("start_ns"), thread=pl.col("stream")
    )
    ranges = work.filter(is_call).sort("start_ns", maintain_order=True)
    starters = _starters(collectives, ranges.height)
    communicated = ranges.hstack(
        starters.select(launch_ns="start_ns", launch_end_ns="end_ns", thread="thread")
    )
    return (
        pl.concat([computed, communicated])
        .sort("start_ns", maintain_order=True)
        .select(
            "start_ns",
            "end_ns",
            "kind",
            "stream",
            pl.lit(value=False).alias("on_device"),
            pl.lit(None, dtype=pl.Int64).alias("correlation"),
            "launch_ns",
            "launch_end_ns",
            "thread",
        )
    )


def _starters(collectives: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return the operators that started `count` ranges, in order; nulls where they do not pair up."""
    for source in ("host", "op"):
        operators = collectives.filter(pl.col("source") == source).sort("start_ns", maintain_order=True)
        if operators.height == count:
            return operators
    return collectives.clear(count)
