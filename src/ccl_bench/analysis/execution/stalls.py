"""Where hosts do something else than launching work: load data, collect garbage, compile, load modules."""

from __future__ import annotations

from ccl_bench.analysis.communication.naming import map_distinct
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import outermost
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.host_stalls import stall_of_call, stall_of_range


@derived(
    reads={
        "launches": ("start_ns", "end_ns", "name", "thread"),
        "cpu_ops": ("start_ns", "end_ns", "name", "thread"),
        "annotations": ("start_ns", "end_ns", "name", "thread", "on_device"),
    },
    kind=("String", "`data loading`, `garbage collection`, `compilation` or `module loading`"),
    name=("String", "name of the range or call"),
    thread=("Int64", "thread"),
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
)
def stalls(launches: pl.DataFrame, cpu_ops: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """One range or call in which a host of one trace does not launch work; the outermost of each kind."""
    columns = ("start_ns", "end_ns", "thread", "name")
    sources = (
        (annotations.filter(~pl.col("on_device")), stall_of_range),
        (cpu_ops, stall_of_range),
        (launches, stall_of_call),
    )
    known = [
        source.select(*columns, kind=map_distinct(source["name"], of)).drop_nulls("kind")
        for source, of in sources
    ]
    found = pl.concat(each.with_columns(pl.col("name").cast(pl.String)) for each in known)
    parts = [outermost(part) for part in found.partition_by("kind", "thread", maintain_order=True)]
    whole = pl.concat(parts) if parts else found
    return whole.sort("start_ns").select(*DERIVED.get("stalls").table.columns)
