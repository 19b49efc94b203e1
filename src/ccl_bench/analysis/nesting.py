"""Ranges inside ranges on one thread: which lies in which, and which is the innermost at a moment."""

from __future__ import annotations

from ccl_bench.base.lazy_imports import pl

_SPAN = ("start_ns", "end_ns")


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
    deep = rows.join(depths.select("row", "depth"), on="row", maintain_order="left")
    outer = deep.select("thread", "start_ns", depth=pl.col("depth") + 1, parent="row").sort("start_ns")
    inner = deep.sort("start_ns", maintain_order=True)
    found = inner.join_asof(outer, on="start_ns", by=["thread", "depth"], check_sortedness=False)
    return found.sort("row").drop("depth")


def innermost_at(points: pl.DataFrame, ranges: pl.DataFrame, at: str) -> pl.Series:
    """Return the row of the innermost of `nested` ranges around the time `at` of each point on its thread."""
    bounds = pl.concat(
        [
            ranges.select("thread", "row", moment="start_ns", begins=pl.lit(value=True), order="row"),
            ranges.select(
                "thread", row="parent", moment="end_ns", begins=pl.lit(value=False), order=-pl.col("row")
            ),
        ]
    ).sort("moment", "begins", "order")
    asked = points.select("thread", moment=pl.col(at)).with_row_index("point").sort("moment", nulls_last=True)
    found = asked.join_asof(
        bounds.drop("begins", "order"), on="moment", by="thread", strategy="backward", check_sortedness=False
    )
    return found.sort("point")["row"]


def own_lengths(ranges: pl.DataFrame) -> pl.Series:
    """Return the time of each of `nested` ranges that is in none of those inside it, ns."""
    length = pl.col("end_ns") - pl.col("start_ns")
    inside = ranges.drop_nulls("parent").group_by("parent").agg(length.sum().alias("inside_ns"))
    joined = ranges.join(inside, left_on="row", right_on="parent", how="left", maintain_order="left")
    return joined.select((length - pl.col("inside_ns").fill_null(0)).alias("own_ns")).to_series()
