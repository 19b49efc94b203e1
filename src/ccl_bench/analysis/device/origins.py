"""Where work was started: each piece of work with the call on the CPU that launched it."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.work import COMMUNICATION
from ccl_bench.frames import pl


@derived(
    start_ns=("Int64", "start of the work, ns"),
    end_ns=("Int64", "end of the work, ns"),
    kind=("String", "`compute`, `communication`, `fused` or `memory`"),
    collective=("String", "canonical collective; null unless the kind is communication"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    on_device=("Boolean", "whether a device did it; on a run without one the CPU does all"),
    correlation=("Int64", "launch correlation; null on the CPU"),
    launch_ns=("Int64", "start of the call that launched it, ns; null where that is not recorded"),
    launch_end_ns=("Int64", "end of that call, ns"),
    thread=("Int64", "CPU thread of that call"),
)
def origins(work: pl.DataFrame, device_work: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """One interval of work with its launch.

    On a device the two are joined by their correlation; all kernels of a CUDA graph have the
    same launch. Without a device an operator is its own launch, and a `gloo:*` range was launched
    by the operator that started it: the k-th by the k-th, where there are as many.
    """
    if device_work.height:
        return device_work.with_columns(on_device=pl.lit(value=True)).select(*_columns())
    return _on_host(work, collectives)


def _columns() -> list[str]:
    return list(DERIVED.get("origins").table.columns)


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
        .with_columns(on_device=pl.lit(value=False), correlation=pl.lit(None, dtype=pl.Int64))
        .select(*_columns())
    )


def _starters(collectives: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return the operators that started `count` ranges, in order; nulls where they do not pair up."""
    for source in ("host", "op"):
        operators = collectives.filter(pl.col("source") == source).sort("start_ns", maintain_order=True)
        if operators.height == count:
            return operators
    return collectives.clear(count)
