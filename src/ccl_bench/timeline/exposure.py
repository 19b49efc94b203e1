"""Exposed communication and pipeline bubbles of one rank, as slices that add up to the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.matching import point_to_point
from ccl_bench.analysis.intervals import clipped, outside
from ccl_bench.analysis.pipeline import moving, with_transfer
from ccl_bench.analysis.work import COMPUTING
from ccl_bench.base.lazy_polars import pl
from ccl_bench.timeline.tracks import BUBBLE, EXPOSED, slices

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDS = ("exposed_calls",)
"""Tables of a trace that exposed communication is made from, beside those of its activity."""

OF_PIPELINES = ("exposed_messages", "stage_parts")
"""Tables that bubbles are made from in addition."""


def exposed(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the stretches of communication in steps in which nothing computed."""
    return slices(tables["exposed_calls"], EXPOSED, name=pl.col("collective"))


def bubbles(tables: Mapping[str, pl.DataFrame], messages: pl.DataFrame, trace: int) -> pl.DataFrame:
    """Return the stretches of steps in which a pipeline stage neither computed nor moved data."""
    calls = tables["calls"].filter(~pl.col("collective").is_in(point_to_point()))
    stretches = tables["exposed_messages"].with_columns(trace=pl.lit(trace, dtype=pl.Int64))
    moved = moving(with_transfer(stretches, messages))
    compute = tables["work"].filter(pl.col("kind").is_in(COMPUTING))
    busy = pl.concat([table.select("start_ns", "end_ns") for table in (compute, calls, moved)])
    parts = tables["stage_parts"]
    windows = parts.select("start_ns", "end_ns")
    gaps = clipped(outside(windows, busy), windows)
    place = parts.select("step", "part")[gaps["window"]]
    return slices(gaps.hstack(place), BUBBLE, name=pl.lit("bubble, ") + pl.col("part"))
