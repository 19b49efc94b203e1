"""Where work was started: each piece of work with the call on the CPU that launched it."""

from __future__ import annotations

from ccl_bench.analysis.communication.arguments import starters
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.work import COMMUNICATION, gloo_ranges
from ccl_bench.base.lazy_polars import pl


@derived(
    start_ns=("Int64", "start of the work, ns"),
    end_ns=("Int64", "end of the work, ns"),
    kind=("String", "`compute`, `communication`, `fused` or `memory`"),
    collective=("String", "canonical collective, that of its call; null unless the kind is communication"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    on_device=("Boolean", "whether a device did it; on a run without one the CPU does all"),
    correlation=("Int64", "launch correlation; null on the CPU"),
    launch_ns=("Int64", "start of the call that launched it, ns; null where that is not recorded"),
    launch_end_ns=("Int64", "end of that call, ns"),
    thread=("Int64", "CPU thread of that call"),
)
def origins(
    work: pl.DataFrame,
    device_work: pl.DataFrame,
    described_calls: pl.DataFrame,
    annotations: pl.DataFrame,
    collectives: pl.DataFrame,
) -> pl.DataFrame:
    """One interval of work with its launch.

    On a device the two are joined by their correlation; all kernels of a CUDA graph have the
    same launch. Without a device an operator is its own launch, and a `gloo:*` range was launched
    by the operator that started it, where that is certain.
    """
    if device_work.height:
        by_name = device_work["collective"]
        found = device_work.drop("collective").with_columns(on_device=pl.lit(value=True))
    else:
        found = _on_host(work, annotations, collectives)
        by_name = pl.Series("collective", [None] * found.height, dtype=pl.String)
    key = ["start_ns", "stream"]
    called = described_calls.select(*key, "collective").unique(key, keep="first", maintain_order=True)
    named = found.join(called, on=key, how="left", nulls_equal=True, maintain_order="left")
    is_call = pl.col("kind") == COMMUNICATION
    true_name = pl.when(is_call).then(pl.coalesce("collective", by_name)).alias("collective")
    return named.with_columns(true_name).select(*_columns())


def _columns() -> list[str]:
    return list(DERIVED.get("origins").table.columns)


def _on_host(work: pl.DataFrame, annotations: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    is_call = pl.col("kind") == COMMUNICATION
    computed = work.filter(~is_call).with_columns(
        launch_ns=pl.col("start_ns"), launch_end_ns=pl.col("start_ns"), thread=pl.col("stream")
    )
    begun = starters(gloo_ranges(annotations), collectives)
    communicated = work.filter(is_call).join(
        begun.rename({"thread": "stream", "operator_thread": "thread"}).select(
            "start_ns", "stream", "thread", launch_ns="operator_ns", launch_end_ns="operator_end_ns"
        ),
        on=["start_ns", "stream"],
        how="left",
    )
    return (
        pl.concat([computed, communicated], how="diagonal")
        .sort("start_ns", maintain_order=True)
        .with_columns(on_device=pl.lit(value=False), correlation=pl.lit(None, dtype=pl.Int64))
    )
