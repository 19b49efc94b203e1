"""Transfers of KV cache in traces of a server, as ranges of the program name them."""

from __future__ import annotations

from ccl_bench.analysis.by_origin import innermost_at, nested
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.markers import on_cpu
from ccl_bench.analysis.device.time_by_kind import SET
from ccl_bench.analysis.device.work import with_launch
from ccl_bench.analysis.names import matching
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import load_data

KERNEL = "kernel"
"""The way of a kernel, which may copy and does not state how much."""


@derived(
    name=("String", "name of the range"),
    start_ns=("Int64", "start of the work, ns; null for a range that launched none"),
    end_ns=("Int64", "end of the work, ns"),
    way=("String", "`HtoD`, `DtoH`, `DtoD`, `PtoP`, `HtoH`, `other`, or `kernel`"),
    bytes=("Int64", "bytes moved; null if unknown"),
)
def kv_transfers(
    annotations: pl.DataFrame, kernels: pl.DataFrame, memcpy: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """One copy or kernel launched in a range that moves KV cache, or such a range that launched none."""
    table = DERIVED.get("kv_transfers").table
    host = on_cpu(annotations)
    pattern = "|".join(f"(?:{row['match']})" for row in load_data("kv_transfers")["range"])
    ranges = nested(
        host.filter(matching(host["name"], pattern)).select("start_ns", "end_ns", "name", "thread")
    )
    if ranges.is_empty():
        return table.empty()
    columns = ("start_ns", "end_ns", "correlation")
    work = pl.concat(
        [
            memcpy.filter(pl.col("kind") != SET).select(*columns, "bytes", way="kind"),
            kernels.select(*columns, bytes=pl.lit(None, pl.Int64), way=pl.lit(KERNEL)),
        ]
    )
    launched = with_launch(work, launches).drop_nulls("launch_ns")
    placed = launched.with_columns(row=innermost_at(launched, ranges, "launch_ns")).drop_nulls("row")
    names = ranges.select("row", "parent", pl.col("name").cast(pl.String))
    moved = placed.join(names, on="row", maintain_order="left")
    # A range whose work was launched in ranges inside it moved that.
    is_fruitful = names["row"].is_in(moved["row"].implode()) | names["row"].is_in(names["parent"].implode())
    idle = names.filter(~is_fruitful).select("name")
    return pl.concat([moved.select(*table.columns), idle], how="diagonal").select(*table.columns)
