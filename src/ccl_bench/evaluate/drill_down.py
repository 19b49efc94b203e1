"""Drill-down lists of a report: consumers of time, traffic between ranks, holders of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.device.short_names import short_name
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.per_step import label
from ccl_bench.result.drill_down import (
    CallKind,
    CallSite,
    CategoryCurves,
    DrillDown,
    KernelTime,
    MemoryAtPeak,
    OperatorTime,
    PairTraffic,
    ProductShape,
    RangeTime,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LISTED_WITH = {
    "operator_time": "gpu_busy",
    "kernel_time": "total_kernel_time",
    "product_shapes": "gpu_busy",
    "range_time": "gpu_busy",
    "call_kinds": "total_communication_time",
    "traffic_matrix": "total_communication_time",
    "memory_holders": "peak_memory_allocated",
    "category_outline": "peak_memory_allocated",
}
"""Table of a list → the metric of the same values: if that has none, the list is empty."""

MOST = 200
"""Largest number of entries of a list."""

_MOST_PAIRS = 1_000
_LONGEST_NAME = 600

_Lists = dict[str, tuple[list[Any], int]]


def drill_down(tables: Mapping[str, pl.DataFrame], steps: int) -> DrillDown:
    """Return the lists of the available tables; `steps` is the number of steps over all ranks."""
    makers: dict[str, tuple[str, Callable[[pl.DataFrame, int], pl.DataFrame], Any]] = {
        "operators": ("operator_time", operators, OperatorTime),
        "kernels": ("kernel_time", kernels, KernelTime),
        "products": ("product_shapes", products, ProductShape),
        "ranges": ("range_time", ranges, RangeTime),
        "calls": ("call_kinds", calls, CallKind),
        "pairs": ("traffic_matrix", pairs, PairTraffic),
    }
    lists: dict[str, list[Any]] = {}
    left_out: dict[str, int] = {}
    for name, (table, make, kind) in makers.items():
        if table in tables and steps:
            rows = make(tables[table], steps)
            most = _MOST_PAIRS if name == "pairs" else MOST
            lists[name] = [kind(*row) for row in rows.head(most).iter_rows()]
            left_out |= {name: rows.height - most} if rows.height > most else {}
    holders, outline = tables.get("memory_holders"), tables.get("category_outline")
    peak = None if holders is None else memory_at_peak(holders)
    curves = None if outline is None else category_curves(outline)
    return DrillDown(**lists, left_out=left_out, memory=peak, categories=curves)


def _seconds(column: str, steps: int) -> pl.Expr:
    """Return the sum of times in ns as s of a mean step."""
    return pl.col(column).sum() / (SECOND_NS * steps)


def _count(column: str, steps: int) -> pl.Expr:
    return pl.col(column).sum() / steps


def operators(table: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return operators in a mean step, those with most time on the device first, then by own time."""
    by_name = table.group_by("name").agg(
        _count("count", steps),
        _seconds("host_ns", steps),
        _seconds("own_ns", steps),
        _count("launched", steps),
        _seconds("device_ns", steps),
    )
    return by_name.sort("device_ns", "own_ns", "name", descending=[True, True, False])


def kernels(table: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return kernels by name in a mean step, the longest first."""
    by_name = table.group_by("name", "type").agg(_count("count", steps), _seconds("duration_ns", steps))
    ordered = by_name.sort("duration_ns", "name", descending=[True, False]).with_columns(
        pct=100 * pl.col("duration_ns") / pl.col("duration_ns").sum()
    )
    short_names = {name: short_name(name) for name in ordered["name"].drop_nulls()}
    short = pl.col("name").replace_strict(short_names, default="unknown", return_dtype=pl.String)
    return ordered.select(
        pl.col("name").fill_null("unknown").str.head(_LONGEST_NAME),
        short.alias("short"),
        "type",
        "count",
        "duration_ns",
        "pct",
    )


def products(table: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return matrix products by shape in a mean step, those that took most time first."""
    on_device = bool(table["timed"].sum())
    time, timed = ("device_ns", "timed") if on_device else ("host_ns", "count")
    shape = ("name", "batch", "rows", "inner", "columns", "dtype", "is_tf32")
    rate = (pl.col("flops") * pl.col(timed)).sum() * SECOND_NS / pl.col(time).sum()
    by_shape = (
        table.with_columns(pl.col("is_tf32").fill_null(value=False))
        .group_by(shape)
        .agg(
            _count("count", steps),
            pl.col("flops").first(),
            _seconds(time, steps),
            pl.lit(on_device).alias("on_device"),
            pl.when(pl.col(time).sum() > 0).then(rate).alias("rate"),
        )
    )
    return by_shape.sort(time, *shape, descending=[True] + [False] * len(shape))


def ranges(table: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return named ranges in a mean step, those with most time on the device first."""
    by_path = table.group_by("path").agg(
        _count("count", steps),
        _seconds("host_ns", steps),
        _count("launched", steps),
        _seconds("device_ns", steps),
    )
    return by_path.sort("device_ns", "host_ns", "path", descending=[True, True, False])


def calls(table: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return kinds of calls in a mean step, those that took most time first."""
    times = ("duration_ns", "waiting_ns", "transfer_ns", "unknown_ns")
    return table.select(
        "collective",
        pl.col("dtype").fill_null("unknown"),
        "size_bytes",
        pl.col("dimension").fill_null("unknown"),
        "size",
        pl.col("calls") / steps,
        *(pl.col(name) / (SECOND_NS * steps) for name in times),
        pl.col("skew_ns") / SECOND_NS,
        "bus_bandwidth",
        "is_wait_free",
    )


def pairs(table: pl.DataFrame, _steps: int) -> pl.DataFrame:
    """Return the traffic from each rank to each other rank, the largest first."""
    by_pair = table.group_by("source", "target").agg(pl.col("calls", "bytes").sum())
    return by_pair.sort("bytes", "source", "target", descending=[True, False, False])


def memory_at_peak(holders: pl.DataFrame) -> MemoryAtPeak | None:
    """Return the holders of memory on the device with the largest allocation."""
    place = ("trace", "device")
    sums = holders.group_by(*place, "rank").agg(pl.col("bytes").sum()).sort("bytes", *place, descending=True)
    if sums.is_empty():
        return None
    top = sums.row(0, named=True)
    device_holders = holders.filter((pl.col("trace") == top["trace"]) & (pl.col("device") == top["device"]))
    sites = device_holders.sort("bytes", descending=True, maintain_order=True).select(
        pl.col("frames").list.reverse().fill_null([]),
        "bytes",
        "blocks",
        pl.col("category").fill_null("unknown"),
        "is_before_history",
    )
    device = f"rank {label(top['rank'])}, device {top['device']}"
    return MemoryAtPeak(device, top["bytes"], [CallSite(*row) for row in sites.head(MOST).iter_rows()])


def category_curves(outline: pl.DataFrame) -> CategoryCurves | None:
    """Return memory by category on the device with the largest allocation; None for a single category."""
    place = ["trace", "device"]
    totals = outline.group_by(*place, "rank", "point").agg(pl.col("allocated_bytes").sum())
    if totals.is_empty():
        return None
    top = totals.sort("allocated_bytes", *place, descending=True).row(0, named=True)
    device_outline = outline.filter((pl.col("trace") == top["trace"]) & (pl.col("device") == top["device"]))
    points = device_outline.sort("point").unique("point", keep="first", maintain_order=True)
    if device_outline["category"].n_unique() < 2:
        return None
    is_timed = not points["time_ns"].tail(-1).null_count() and points["time_ns"].n_unique() > 1
    times = (points["time_ns"].backward_fill() - points["time_ns"].min()) / SECOND_NS
    by_category = device_outline.sort("category", "point").partition_by(
        "category", as_dict=True, maintain_order=True
    )
    return CategoryCurves(
        f"rank {label(top['rank'])}, device {top['device']}",
        is_timed,
        (times if is_timed else points["order"].cast(pl.Float64)).to_list(),
        {str(key[0]): rows["allocated_bytes"].to_list() for key, rows in by_category.items()},
    )
