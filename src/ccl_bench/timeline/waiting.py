"""Waiting in collectives and who caused it, as slices; and how many ranks wait at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.waits import counted
from ccl_bench.base.lazy_polars import pl
from ccl_bench.timeline.tracks import LATE, WAIT, slices

if TYPE_CHECKING:
    from collections.abc import Mapping

UNCOUNTED = "wait, not counted"
TRANSFER = "transfer"

_KEY = ("iteration", "group", "number")


def members(matched: pl.DataFrame, offsets_ns: Mapping[int, int]) -> pl.DataFrame:
    """Return the members of collectives whose waiting can be told, with what slices need of them.

    Beside the columns of `matched`: `counts`, whether the wait is in the metrics; `last` and `longest_ns`
    where it is; `offset_ns` of the trace's clock; `flow`, the collective that it is part of, and its `role`.
    """
    told = matched.drop_nulls("wait_ns")
    marks = counted(matched).select(*_KEY, "trace", "last", "longest_ns", counts=pl.lit(value=True))
    joined = told.join(marks, on=[*_KEY, "trace"], how="left", nulls_equal=True, maintain_order="left")
    offset = pl.col("trace").replace_strict(dict(offsets_ns), default=0, return_dtype=pl.Int64)
    placed = joined.with_columns(
        pl.col("counts", "last").fill_null(value=False),
        offset.alias("offset_ns"),
        pl.struct(_KEY).rank("dense").cast(pl.Int64).alias("flow"),
    )
    moves = pl.col("start_ns") + pl.col("wait_ns") - pl.col("offset_ns")
    order = moves.rank("ordinal").over("flow")
    role = pl.when(order == 1).then(pl.lit("s")).when(order == pl.len().over("flow")).then(pl.lit("f"))
    return placed.with_columns(role.otherwise(pl.lit("t")).alias("role"))


def waiting(members: pl.DataFrame) -> pl.DataFrame:
    """Return the slices of one trace's members: waiting first, then moving data."""
    kind = pl.concat_str("collective", "dimension", separator=" ", ignore_nulls=True)
    category = pl.when("counts").then(pl.lit(WAIT)).otherwise(pl.lit(UNCOUNTED))
    waited = members.filter(pl.col("wait_ns") > 0).with_columns(end_ns=pl.col("start_ns") + pl.col("wait_ns"))
    moved = members.with_columns(start_ns=pl.col("start_ns") + pl.col("wait_ns"))
    held = members.filter(pl.col("last") & (pl.col("longest_ns") > 0)).with_columns(
        start_ns=pl.col("start_ns") - pl.col("longest_ns"), end_ns=pl.col("start_ns")
    )
    alone = pl.lit(None)
    return pl.concat(
        [
            slices(waited, WAIT, name=pl.lit("wait in ") + kind, category=category, flow=alone, role=alone),
            slices(moved, WAIT, name=kind, category=pl.lit(TRANSFER)),
            slices(held, LATE, name=pl.lit("late to ") + kind, flow=alone, role=alone),
        ]
    )


def ranks_waiting(members: pl.DataFrame) -> pl.DataFrame:
    """Return how many members wait from each moment `at_ns` of the common clock on."""
    waits = members.filter(pl.col("wait_ns") > 0).with_columns(pl.col("start_ns") - pl.col("offset_ns"))
    changes = pl.concat(
        [
            waits.select(at_ns="start_ns", change=pl.lit(1, dtype=pl.Int64)),
            waits.select(at_ns=pl.col("start_ns") + pl.col("wait_ns"), change=pl.lit(-1, dtype=pl.Int64)),
        ]
    )
    levels = changes.group_by("at_ns").agg(pl.col("change").sum()).sort("at_ns").filter(pl.col("change") != 0)
    return levels.select("at_ns", pl.col("change").cum_sum().alias("waiting"))
