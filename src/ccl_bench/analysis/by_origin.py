"""Host and device time by operator, by shape of matrix products, and by nested range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.markers import on_cpu
from ccl_bench.analysis.flops import costs, innermost
from ccl_bench.analysis.intervals import assign_step, window_at
from ccl_bench.analysis.names import matching
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    parent = np.full(rows.height, _NONE)
    for first, until in _by_thread(rows).values():
        # A range is as deep as ranges have begun and not ended: its parent is the last one that is less deep.
        place, size = np.arange(until - first), until - first
        ended = np.searchsorted(np.sort(end_ns[first:until]), start_ns[first:until], side="right")
        depth = place + 1 - ended
        at_depth = np.sort(depth * size + place)
        before = np.searchsorted(at_depth, (depth - 1) * size + place) - 1
        last = np.append(at_depth, _NONE)[before]
        parent[first:until] = np.where(last // size == depth - 1, first + last % size, _NONE)
    return rows.with_columns(_rows_or_null("parent", parent))


def innermost_at(points: pl.DataFrame, ranges: pl.DataFrame, at: str) -> pl.Series:
    """Return the row of the innermost of `nested` ranges around the time `at` of each point on its thread."""
    start_ns, end_ns = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    parent = ranges["parent"].fill_null(_NONE).to_numpy()
    innermost = np.full(points.height, _NONE)
    rows_of = _by_thread(ranges)
    valid_points = points.select("thread", moment=pl.col(at)).with_row_index("point").drop_nulls()
    for (thread,), part in valid_points.partition_by("thread", as_dict=True).items():
        first, until = rows_of.get(thread, (0, 0))
        if first == until:
            continue
        # From the end of a range on, the innermost one is its parent. At one moment ends come before starts,
        # and inner ends before outer ones.
        by_end = until - 1 - np.argsort(end_ns[first:until][::-1], kind="stable")
        moments = part["moment"].to_numpy()
        begun = np.searchsorted(start_ns[first:until], moments, side="right") - 1
        ended = np.searchsorted(end_ns[by_end], moments, side="right") - 1
        is_in = (begun >= 0) & ((ended < 0) | (start_ns[first + begun] >= end_ns[by_end[ended]]))
        innermost[part["point"].to_numpy()] = np.where(
            is_in, first + begun, np.where(ended < 0, _NONE, parent[by_end[ended]])
        )
    return _rows_or_null("row", innermost)


_NONE = -1


def _by_thread(rows: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the first row of each known thread and the one after its last; rows are in order of threads."""
    threads = rows["thread"]
    opens = np.flatnonzero(np.diff(threads.rle_id().to_numpy().astype(np.int64), prepend=-1))
    ends = np.append(opens, len(threads))[1:]
    runs = zip(threads[opens].to_list(), opens.tolist(), ends.tolist(), strict=True)
    return {thread: (first, until) for thread, first, until in runs if thread is not None}


def _rows_or_null(name: str, rows: NDArray[np.int64]) -> pl.Series:
    numbers = pl.Series(name, rows, dtype=pl.Int64)
    return numbers.set(numbers == _NONE, None)


def own_lengths(ranges: pl.DataFrame) -> pl.Series:
    """Return the time of each of `nested` ranges that is in none of those inside it, ns."""
    inside = ranges.drop_nulls("parent").group_by("parent").agg(inside_ns=_length().sum())
    joined = ranges.join(inside, left_on="row", right_on="parent", how="left", maintain_order="left")
    return joined.select(own_ns=_length() - pl.col("inside_ns").fill_null(0)).to_series()
