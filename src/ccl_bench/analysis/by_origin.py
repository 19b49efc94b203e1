"""Host and device time by operator, by shape of matrix products, and by nested range."""

from __future__ import annotations

import re

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.markers import on_cpu
from ccl_bench.analysis.flops import costs, innermost
from ccl_bench.analysis.intervals import assign_step, window_at
from ccl_bench.analysis.names import matching
from ccl_bench.base.lazy_imports import pl

_HOST = ("start_ns", "end_ns")


def _in_steps(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that began on the CPU in a step, with the `window` of that step."""
    window = window_at(rows["start_ns"], steps.select(*_HOST))
    return rows.with_columns(window.alias("window")).drop_nulls("window")


def _of_steps(device_work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the work of steps, with the `window` and how long it took."""
    step_work = device_work.with_columns(assign_step(device_work, steps).alias("window")).drop_nulls("window")
    return step_work.with_columns(device_ns=_length())


def _length() -> pl.Expr:
    return pl.col("end_ns") - pl.col("start_ns")


@derived(
    reads={"cpu_ops": ("start_ns", "end_ns", "name", "thread")},
    step=("Int64", "number of the step"),
    name=("String", "name of the operator"),
    count=("Int64", "number of times that it began in the step"),
    host_ns=("Int64", "sum of its durations on the CPU, ns"),
    own_ns=("Int64", "of these, time outside the operators that it calls, ns"),
    launched=("Int64", "kernels, copies and sets of the step that it launched itself"),
    device_ns=("Int64", "sum of the durations of these, ns"),
)
def operator_time(steps: pl.DataFrame, cpu_ops: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """One operator in one step of one trace: its time on the CPU, and on the device of what it launched.

    The innermost operator around a launch launched the work.
    """
    ranges = nested(cpu_ops)
    timed = _in_steps(ranges.with_columns(own_lengths(ranges)), steps)
    host_sums = (
        _in_steps(cpu_ops, steps)
        .group_by("window", "name")
        .agg(pl.len().cast(pl.Int64).alias("count"), _length().sum().alias("host_ns"))
        .join(timed.group_by("window", "name").agg(pl.col("own_ns").sum()), on=["window", "name"], how="left")
    )
    work = _of_steps(device_work, steps)
    launcher = innermost_at(work, ranges, "launch_ns")
    launched = (
        work.with_columns(name=ranges["name"].gather(launcher))
        .drop_nulls("name")
        .group_by("window", "name")
        .agg(pl.len().cast(pl.Int64).alias("launched"), pl.col("device_ns").sum())
    )
    both = host_sums.join(launched, on=["window", "name"], how="full", coalesce=True)
    rows = both.with_columns(pl.col("name").cast(pl.String), pl.exclude("name", "window").fill_null(0))
    ordered = rows.sort("window", "name")
    return ordered.with_columns(steps["step"].gather(ordered["window"])).select(
        *DERIVED.get("operator_time").table.columns
    )


_SHAPE = ("name", "batch", "rows", "inner", "columns", "dtype")


@derived(
    step=("Int64", "number of the step"),
    name=("String", "name as recorded, such as `aten::mm`"),
    batch=("Int64", "pairs of matrices"),
    rows=("Int64", "rows of the first matrix"),
    inner=("Int64", "its columns, and rows of the second"),
    columns=("Int64", "columns of the second matrix"),
    dtype=("String", "element type as recorded"),
    is_tf32=("Boolean", "whether the name of a kernel says that it worked in TF32; null without kernels"),
    count=("Int64", "products that began in the step and call no other"),
    flops=("Float64", "operations of one, 2 for each multiplication and addition"),
    host_ns=("Int64", "sum of their durations on the CPU, ns"),
    launched=("Int64", "kernels that they launched"),
    device_ns=("Int64", "sum of the durations of these, ns"),
    timed=("Int64", "products that launched a kernel"),
)
def product_shapes(steps: pl.DataFrame, products: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """One shape of matrix product in one step of one trace, with the time of the kernels it launched."""
    innermost_products = innermost(costs(products))
    ranges = nested(innermost_products)
    kernels = device_work.filter("is_kernel")
    with_owner = kernels.select(
        row=innermost_at(kernels, ranges, "launch_ns"),
        device_ns=_length(),
        is_tf32=matching(kernels["name"], "tf32"),
    )
    launched = (
        with_owner.drop_nulls("row")
        .group_by("row")
        .agg(pl.len().cast(pl.Int64).alias("launched"), pl.col("device_ns").sum(), pl.col("is_tf32").any())
    )
    each = ranges.join(launched, on="row", how="left", maintain_order="left")
    rows = (
        _in_steps(each, steps)
        .drop_nulls("flops")
        .group_by("window", *_SHAPE, "flops")
        .agg(
            pl.when(pl.col("launched").count() > 0).then(pl.col("is_tf32").any()).alias("is_tf32"),
            pl.len().cast(pl.Int64).alias("count"),
            _length().sum().alias("host_ns"),
            pl.col("launched", "device_ns").sum(),
            pl.col("launched").count().cast(pl.Int64).alias("timed"),
        )
        .sort("window", *_SHAPE)
    )
    return rows.with_columns(steps["step"].gather(rows["window"])).select(
        *DERIVED.get("product_shapes").table.columns
    )


_NOT_A_PART = re.compile(
    r"^(?:ProfilerStep|(?:gloo|nccl|c10d|aten|prim|triton|record_param_comms)\b|\w+::\w+, )"
)
"""Ranges that are steps, calls or operators, and no part of the model or the program."""


@derived(
    step=("Int64", "number of the step"),
    path=("List(String)", "names of the ranges around it, the outermost first, and its own"),
    count=("Int64", "number of times that it began in the step"),
    host_ns=("Int64", "sum of its durations on the CPU, ns"),
    launched=("Int64", "kernels, copies and sets of the step launched in it and in no range inside it"),
    device_ns=("Int64", "sum of the durations of these, ns"),
)
def range_time(steps: pl.DataFrame, annotations: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """One named range of the CPU in one step of one trace: a module, a phase, or what the program marked.

    Work that the backward pass launches is in a range of its own thread, or in none.
    """
    marked = on_cpu(annotations)
    others = {name: bool(_NOT_A_PART.match(name)) for name in marked["name"].unique()}
    is_other = marked["name"].replace_strict(others, default=False, return_dtype=pl.Boolean)
    ranges = nested(marked.filter(~is_other).select(*_HOST, "name", "thread"))
    paths: list[str] = []
    for name, parent in ranges.select("name", "parent").iter_rows():
        paths.append(name if parent is None else f"{paths[parent]}{_BETWEEN}{name}")
    ranges = ranges.with_columns(pl.Series("path", paths, dtype=pl.String))
    host_sums = (
        _in_steps(ranges, steps)
        .group_by("window", "path")
        .agg(pl.len().cast(pl.Int64).alias("count"), _length().sum().alias("host_ns"))
    )
    work = _of_steps(device_work, steps)
    owner = innermost_at(work, ranges, "launch_ns")
    launched = (
        work.with_columns(path=ranges["path"].gather(owner))
        .drop_nulls("path")
        .group_by("window", "path")
        .agg(pl.len().cast(pl.Int64).alias("launched"), pl.col("device_ns").sum())
    )
    both = host_sums.join(launched, on=["window", "path"], how="full", coalesce=True)
    rows = both.with_columns(pl.exclude("path", "window").fill_null(0)).sort("window", "path")
    return rows.with_columns(steps["step"].gather(rows["window"]), pl.col("path").str.split(_BETWEEN)).select(
        *DERIVED.get("range_time").table.columns
    )


_BETWEEN = "\x1f"
"""Separator between the names of a path; no name contains it."""


def nested(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ranges with their `row`, in order of thread and start, and the row of their `parent`, else null.

    What has no length is left out. Of two ranges that begin and end together the first is the parent.
    """
    long = ranges.filter(pl.col("end_ns") > pl.col("start_ns"))
    ordered = long.sort("thread", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True)
    rows = ordered.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    bounds = pl.concat(
        [
            rows.select("thread", "row", at="start_ns", change=pl.lit(1, dtype=pl.Int64)),
            rows.select("thread", "row", at="end_ns", change=pl.lit(-1, dtype=pl.Int64)),
        ]
    ).sort("thread", "at", "change", "row")
    depths = bounds.with_columns(depth=pl.col("change").cum_sum().over("thread")).filter(pl.col("change") > 0)
    deep = rows.select("row", "thread", "start_ns").hstack(depths.sort("row").select("depth"))
    outer = deep.select("thread", "start_ns", depth=pl.col("depth") + 1, parent="row").sort("start_ns")
    inner = deep.sort("start_ns", maintain_order=True)
    with_parents = inner.join_asof(outer, on="start_ns", by=["thread", "depth"], check_sortedness=False)
    return rows.hstack(with_parents.sort("row").select("parent"))


def innermost_at(points: pl.DataFrame, ranges: pl.DataFrame, at: str) -> pl.Series:
    """Return the row of the innermost of `nested` ranges around the time `at` of each point on its thread."""
    # From the end of a range on, the innermost one is its parent. At one moment ends come before starts, and
    # inner ends before outer ones: the last bound up to a point is that of the innermost range around it.
    begins = ranges.select("thread", "row", moment="start_ns", begins=pl.lit(value=True), order="row")
    ends = ranges.select(
        "thread", row="parent", moment="end_ns", begins=pl.lit(value=False), order=-pl.col("row")
    )
    bounds = pl.concat([begins, ends]).sort("moment", "begins", "order").drop("begins", "order")
    lookups = (
        points.select("thread", moment=pl.col(at)).with_row_index("point").sort("moment", nulls_last=True)
    )
    placed = lookups.join_asof(bounds, on="moment", by="thread", strategy="backward", check_sortedness=False)
    return placed.sort("point")["row"]


def own_lengths(ranges: pl.DataFrame) -> pl.Series:
    """Return the time of each of `nested` ranges that is in none of those inside it, ns."""
    inside = ranges.drop_nulls("parent").group_by("parent").agg(inside_ns=_length().sum())
    joined = ranges.join(inside, left_on="row", right_on="parent", how="left", maintain_order="left")
    return joined.select(own_ns=_length() - pl.col("inside_ns").fill_null(0)).to_series()
