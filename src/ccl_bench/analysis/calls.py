"""Communication calls: each once, with the truest name and the arguments that were recorded."""

from __future__ import annotations

from ccl_bench.analysis import naming
from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.work import gloo_ranges
from ccl_bench.frames import pl

ARGUMENTS = (
    "dtype",
    "in_elements",
    "out_elements",
    "in_split",
    "out_split",
    "group_size",
    "group_name",
    "group_description",
    "group_ranks",
    "group_start",
    "group_stride",
    "sequence",
    "communicator",
    "peer",
)


@derived(
    step=("Int64", "step in whose device window the call started; null outside all steps"),
    start_ns=("Int64", "start of the communication, ns"),
    end_ns=("Int64", "end of the communication, ns"),
    collective=("String", "canonical collective"),
    name=("String", "name of the kernel or range"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    correlation=("Int64", "launch correlation, null on the CPU"),
    recorded=("String", "collective as the arguments name it, null without arguments"),
    dtype=("String", "element type as recorded"),
    in_elements=("Int64", "elements sent by this rank"),
    out_elements=("Int64", "elements received by this rank"),
    in_split=("List(Int64)", "elements sent to each member"),
    out_split=("List(Int64)", "elements received from each member"),
    group_size=("Int64", "members of the process group"),
    group_name=("String", "process group name"),
    group_description=("String", "process group description"),
    group_ranks=("List(Int64)", "global ranks of the members"),
    group_start=("Int64", "first global rank of the group"),
    group_stride=("Int64", "stride between global ranks of the group"),
    sequence=("Int64", "running number of the call on its group"),
    communicator=("String", "communicator id"),
    peer=("Int64", "the other rank of a send or receive"),
)
def calls(
    steps: pl.DataFrame, kernels: pl.DataFrame, annotations: pl.DataFrame, collectives: pl.DataFrame
) -> pl.DataFrame:
    """One communication call of one trace: a kernel on a device, a `gloo:*` range on the CPU."""
    found = _on_device(kernels, collectives) if kernels.height else _on_host(annotations, collectives)
    return _in_steps(found, steps)


def _in_steps(found: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the step in whose device window each call started."""
    windows = device_windows(steps).with_columns(steps["step"]).rename({"end_ns": "until_ns"})
    placed = found.sort("start_ns").join_asof(
        windows.sort("start_ns"), on="start_ns", strategy="backward", coalesce=True
    )
    inside = pl.col("start_ns") < pl.col("until_ns")
    return placed.select(
        pl.when(inside).then("step").alias("step"), pl.exclude("step", "until_ns")
    )


def _on_device(kernels: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    collective = naming.kernel_collectives(kernels)
    communicating = kernels.with_columns(collective.alias("canonical")).filter(collective.is_not_null())
    recorded = collectives.filter(pl.col("source") == "kernel").unique(
        ["correlation", "start_ns"], keep="first", maintain_order=True
    )
    return communicating.join(
        recorded.select("correlation", "start_ns", pl.col("name").alias("recorded"), *ARGUMENTS),
        on=["correlation", "start_ns"],
        how="left",
        maintain_order="left",
    ).select(
        "start_ns",
        "end_ns",
        pl.col("canonical").alias("collective"),
        pl.col("name").cast(pl.String),
        "stream",
        "correlation",
        "recorded",
        *ARGUMENTS,
    )


def _on_host(annotations: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the `gloo:*` ranges, named and sized by the operators that started them.

    gloo carries a reduce-scatter out as an all-reduce and names its range so; the operator
    knows better. Operators and ranges are paired in order where there are as many of one as of
    the other, first operators with named arguments (`record_param_comms`), else `c10d::*`.
    """
    ranges = gloo_ranges(annotations).sort("start_ns", maintain_order=True)
    own = naming.call_collectives(ranges["name"]).fill_null(naming.OTHER)
    base = ranges.select(
        "start_ns",
        "end_ns",
        own.alias("collective"),
        pl.col("name").cast(pl.String),
        pl.col("thread").alias("stream"),
        pl.lit(None, dtype=pl.Int64).alias("correlation"),
    )
    described = _describing(collectives, base.height)
    if described is None:
        sizes = collectives.filter(pl.col("source") == "gloo").sort("start_ns", maintain_order=True)
        return base.hstack(sizes.select(pl.lit(None, dtype=pl.String).alias("recorded"), *ARGUMENTS))
    named = naming.call_collectives(described["name"])
    return base.hstack(described.select(pl.col("name").alias("recorded"), *ARGUMENTS)).with_columns(
        pl.coalesce(named, "collective").alias("collective")
    )


def _describing(collectives: pl.DataFrame, count: int) -> pl.DataFrame | None:
    """Return the operators that describe `count` ranges one to one, in order; None if none do."""
    for source in ("host", "op"):
        operators = collectives.filter(pl.col("source") == source).sort("start_ns", maintain_order=True)
        if operators.height == count:
            return operators
    return None
