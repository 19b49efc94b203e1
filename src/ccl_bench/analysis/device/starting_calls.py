"""Calls that start work on a device: whether the trace has their work, and where it ends before they ran."""

from __future__ import annotations

from typing import cast

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.launches import GRAPH_LAUNCH
from ccl_bench.analysis.names import all_matching, is_one_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema.table import keep_rows

KERNEL_LAUNCH = r"^(?:cu|cuda|hip)(?:ExtModule|Module|Ext)?Launch(?:Cooperative)?(?:MultiDevice)?Kernel"
COPY = r"^(?:cu|cuda|hip)Memcpy"
CAPTURE_BEGINS = r"^(?:cu|cuda|hip)StreamBeginCapture"
CAPTURE_ENDS = r"^(?:cu|cuda|hip)StreamEndCapture"

STARTS_KERNEL, STARTS_GRAPH, STARTS_COPY = "kernel", "graph", "copy"

UNDELIVERED = 0.1
"""Share of the device's time by which its records may end before the host's at the end of a recording.

Profilers deliver records of work in blocks, and the last block not at all if they are stopped. A block is a
small part of a recording.
"""

_WORK = ("start_ns", "end_ns", "device", "stream", "correlation")


@derived(
    reads={
        "kernels": _WORK,
        "memcpy": _WORK,
        "launches": ("start_ns", "end_ns", "name", "process", "thread", "correlation"),
    },
    start_ns=("Int64", "start, ns"),
    kind=("String", "what it starts: `kernel`, `graph` or `copy`"),
    has_work=("Boolean", "whether the trace has work that it started"),
    is_behind=("Boolean", "whether its work was still queued when the recording ended"),
)
def starting_calls(kernels: pl.DataFrame, memcpy: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """One call that starts work on a device while no graph is captured, in order of time.

    A call within another is part of it: the runtime calls the driver.
    """
    work = pl.concat([kernels.select(_WORK), memcpy.select(_WORK)])
    begins, ends, *kinds = all_matching(
        launches["name"], CAPTURE_BEGINS, CAPTURE_ENDS, KERNEL_LAUNCH, COPY, GRAPH_LAUNCH
    )
    edges = [launches["start_ns"].filter(is_edge).sort() for is_edge in (begins, ends)]
    has_work = is_one_of(launches["correlation"], work["correlation"])
    calls = launches.select("process", "thread", "start_ns", "end_ns", "correlation", has_work=has_work)
    of_kernels, of_copies, of_graphs = (keep_rows(calls, is_kind) for is_kind in kinds)
    parts = [
        _outermost(_outside_captures(of_kernels, *edges), STARTS_KERNEL),
        _outermost(of_graphs, STARTS_GRAPH),
        _outermost(_outside_captures(of_copies, *edges), STARTS_COPY),
    ]
    ordered = pl.concat(parts).sort("start_ns", maintain_order=True)
    beyond = _end_of_window(work, launches) if not ordered["has_work"].all() else None
    is_behind = pl.lit(value=False) if beyond is None else ~pl.col("has_work") & (pl.col("start_ns") > beyond)
    return DERIVED.get("starting_calls").table.frame(ordered.with_columns(is_behind=is_behind).to_dict())


def _outside_captures(calls: pl.DataFrame, begins: pl.Series, ends: pl.Series) -> pl.DataFrame:
    """Return the calls that do not only record a graph, which starts nothing."""
    if begins.is_empty() and ends.is_empty():
        return calls
    begin_counts, end_counts = (
        edges.search_sorted(calls["start_ns"], side="right").cast(pl.Int64) for edges in (begins, ends)
    )
    return keep_rows(calls, begin_counts <= end_counts)


def _outermost(calls: pl.DataFrame, kind: str) -> pl.DataFrame:
    numbered = keep_rows(calls, calls["correlation"] > 0)
    if not numbered["has_work"].all():
        ordered = numbered.sort("process", "thread", "start_ns", "end_ns")
        reach = pl.col("end_ns").cum_max().shift(1).over("process", "thread")
        outermost = (pl.col("start_ns") >= reach).fill_null(value=True)
        numbered = ordered.group_by(call=outermost.cast(pl.Int64).cum_sum(), maintain_order=True).agg(
            pl.col("start_ns").first(), pl.col("has_work").any()
        )
    return numbered.select("start_ns", pl.lit(kind).alias("kind"), "has_work")


def _end_of_window(work: pl.DataFrame, launches: pl.DataFrame) -> int | None:
    """Return after which call the work was still queued when the recording ended; None if it lasted longer.

    A recording that ends in time ends for host and device alike: the device's records stop no longer before
    the host's than the piece takes that ran then, or a few that were not delivered. A stream that was
    busy until the end has all that was launched after its last piece still before it. Which stream a call is
    for is not recorded.
    """
    ordered = work.join(
        launches.select("correlation", launch_ns="start_ns").unique("correlation", keep="first"),
        on="correlation",
    )
    if ordered.is_empty():
        return None
    length = (pl.col("end_ns") - pl.col("start_ns")).max()
    streams = ordered.group_by("device", "stream").agg(
        pl.col("launch_ns").max(), pl.col("end_ns").max(), length.alias("longest_ns")
    )
    last_ns = cast("int", streams["end_ns"].max())
    longest_ns = cast("int", streams["longest_ns"].max())
    undelivered_ns = UNDELIVERED * (last_ns - cast("int", work["start_ns"].min()))
    if cast("int", launches["end_ns"].max()) - last_ns > max(longest_ns, undelivered_ns):
        return None
    busy = streams.filter(pl.col("end_ns") >= last_ns - pl.col("longest_ns"))
    return cast("int", busy["launch_ns"].min())
