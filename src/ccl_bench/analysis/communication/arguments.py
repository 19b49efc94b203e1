"""The arguments of communication calls, joined from wherever the trace recorded them.

A kernel may carry its own; the CPU operators and ranges that enclose its launch describe it
too. Each argument is taken from the first source that has it, in the order of `SOURCES`.
"""

from __future__ import annotations

from ccl_bench.analysis.communication import naming
from ccl_bench.frames import pl

SOURCES = ("kernel", "host", "op", "custom", "nccl", "library", "gloo")
"""Kernel arguments, `record_param_comms`, `c10d::*` and other operators, `nccl:*` and `gloo:*` ranges."""

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
    "peer",
)


def launched(calls: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return kernel calls with the time and thread of their launch, null where it was not recorded."""
    starts = launches.filter(launches["correlation"].is_in(calls["correlation"].implode())).select(
        "correlation", pl.col("start_ns").alias("launch_ns"), pl.col("thread").alias("launch_thread")
    )
    first = starts.drop_nulls("correlation").unique("correlation", keep="first", maintain_order=True)
    return calls.join(first, on="correlation", how="left", maintain_order="left")


def with_kernel_arguments(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return launched kernel calls with their arguments and the collective as it was recorded."""
    own = _renamed(collectives, "kernel").unique(
        ["correlation", "start_ns"], keep="first", maintain_order=True
    )
    found = calls.join(own, on=["correlation", "start_ns"], how="left", maintain_order="left")
    for source in SOURCES[1:6]:
        found = _with_enclosing(found, collectives, source)
    return _first_known(found, SOURCES[:6])


def _renamed(collectives: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the rows of one source with its name in front of each argument."""
    rows = collectives.filter(pl.col("source") == source)
    named = naming.call_collectives(rows["name"])
    own_sizes = naming.has_own_sizes(rows["name"])
    return rows.select(
        "start_ns",
        "end_ns",
        "correlation",
        "thread",
        *(pl.col(name).alias(f"{source} {name}") for name in ARGUMENTS),
        named.alias(f"{source} recorded"),
        pl.when(named.is_not_null()).then(own_sizes).alias(f"{source} own_sizes"),
    ).drop(["end_ns", "thread"] if source == "kernel" else [])


def _with_enclosing(calls: pl.DataFrame, collectives: pl.DataFrame, source: str) -> pl.DataFrame:
    """Join the arguments of the innermost range of `source` in which each call was launched."""
    ranges = _renamed(collectives, source).drop("correlation").sort("start_ns")
    arguments = [name for name in ranges.columns if name.startswith(f"{source} ")]
    ranges = ranges.rename({"start_ns": "launch_ns", "end_ns": "_until", "thread": "launch_thread"})
    joined = (
        calls.with_row_index("_row")
        .sort("launch_ns")
        .join_asof(ranges, on="launch_ns", by="launch_thread", strategy="backward", check_sortedness=False)
        .sort("_row")
        .drop("_row")
    )
    inside = pl.col("launch_ns") < pl.col("_until")
    return joined.with_columns(pl.when(inside).then(pl.col(name)).alias(name) for name in arguments).drop(
        "_until"
    )


def _first_known(calls: pl.DataFrame, sources: tuple[str, ...]) -> pl.DataFrame:
    """Fold the arguments of several sources into one column each."""
    folded = [
        pl.coalesce(f"{source} {name}" for source in sources).alias(name)
        for name in (*ARGUMENTS, "recorded", "own_sizes")
    ]
    return calls.with_columns(folded).select(pl.exclude(f"^({'|'.join(sources)}) .*$"))


def with_host_arguments(ranges: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return `gloo:*` ranges, in order of start, with the arguments of the operators that started them.

    gloo carries a reduce-scatter out as an all-reduce and names its range so; the operator
    knows better. Ranges run on threads of their own, so operators and ranges are paired in
    order, and only where there are as many of one as of the other.
    """
    found = ranges.sort("start_ns", maintain_order=True)
    present = []
    for source in ("host", "op", "gloo"):
        rows = collectives.filter(pl.col("source") == source).sort("start_ns", maintain_order=True)
        if source == "gloo" or rows.height == found.height:
            arguments = _renamed(rows, source).select(pl.col(f"^{source} .*$"))
            found = found.hstack(arguments) if rows.height == found.height else found
            present += [source] if rows.height == found.height else []
    if not present:
        empty = collectives.clear().select(
            *ARGUMENTS, recorded=pl.lit(None, dtype=pl.String), own_sizes=pl.lit(None, dtype=pl.Boolean)
        )
        return found.hstack(empty.clear(n=found.height))
    return _first_known(found, tuple(present))
