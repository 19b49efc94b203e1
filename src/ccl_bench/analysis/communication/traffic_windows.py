"""Windows of traffic: communication of one dimension, merged while no other dimension communicates."""

from __future__ import annotations

from ccl_bench.analysis.intervals import merged
from ccl_bench.base.lazy_polars import pl

_PLACE = ["trace", "step"]


def traffic_windows(traffic: pl.DataFrame) -> pl.DataFrame:
    """Return one row a window of one rank and step, in order of start.

    Columns: `trace`, `rank`, `step`, `dimension`, `start_ns`, `end_ns`, `calls`, `bytes`, `communication_ns`
    (time with at least one call) and `gap_ns` to the start of the next window of another dimension in
    the same step: negative where that starts before this one ends, null where none follows.
    """
    busy = merged(traffic, *_PLACE, "dimension")
    windows = _windows(busy)
    calls = (
        traffic.filter(pl.col("start_ns") < pl.col("end_ns"))
        .sort("start_ns")
        .join_asof(
            windows.select(*_PLACE, "dimension", "start_ns", "window").sort("start_ns"),
            on="start_ns",
            by=[*_PLACE, "dimension"],
            strategy="backward",
            check_sortedness=False,
        )
        .group_by("window")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            known_sum("size_bytes").alias("bytes"),
            pl.col("rank").first(),
        )
    )
    return (
        windows.join(calls, on="window", how="left", maintain_order="left")
        .with_columns((_next_other("start_ns") - pl.col("end_ns")).alias("gap_ns"))
        .select(
            *_PLACE, "rank", "dimension", "start_ns", "end_ns", "calls", "bytes", "communication_ns", "gap_ns"
        )
    )


def known_sum(column: str) -> pl.Expr:
    """Return the sum of a column, null where none of its numbers is known."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())


def _windows(busy: pl.DataFrame) -> pl.DataFrame:
    """Return intervals of communication of one dimension, put together over gaps that no other one uses."""
    line = [*_PLACE, "dimension"]
    before = pl.col("end_ns").shift(1).over(line).alias("before_ns")
    ordered = _with_gap_use(busy.sort(*line, "start_ns").with_columns(before)).sort(*line, "start_ns")
    return (
        ordered.with_columns((pl.col("before_ns").is_null() | pl.col("is_used")).cum_sum().alias("window"))
        .group_by(*line, "window", maintain_order=True)
        .agg(
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("communication_ns"),
        )
        .sort(*_PLACE, "start_ns", "end_ns", "dimension")
    )


def _with_gap_use(busy: pl.DataFrame) -> pl.DataFrame:
    """Tell whether another dimension communicates between `before_ns` and `start_ns` of each interval.

    It does where more intervals started before the gap ends than ended before the gap begins: those of
    the same dimension are as many.
    """
    count = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(_PLACE)
    started = busy.sort("start_ns").select(*_PLACE, at="start_ns", started=count)
    ended = busy.sort("end_ns").select(*_PLACE, at="end_ns", ended=count)
    by_end = busy.sort("start_ns").join_asof(
        started,
        left_on="start_ns",
        right_on="at",
        by=_PLACE,
        allow_exact_matches=False,
        check_sortedness=False,
    )
    both = by_end.sort("before_ns").join_asof(
        ended, left_on="before_ns", right_on="at", by=_PLACE, check_sortedness=False
    )
    return both.with_columns((pl.col("started") > pl.col("ended")).fill_null(value=False).alias("is_used"))


def _next_other(column: str) -> pl.Expr:
    """Return a column's value in the next row of the same place that has another dimension."""
    following = pl.col("dimension").shift(-1).over(_PLACE)
    value = pl.col(column).shift(-1).over(_PLACE)
    return pl.when(following != pl.col("dimension")).then(value).backward_fill().over(_PLACE)
