"""The load of experts by rank, and their part of a rank's compute time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis.communication import of_rows
from ccl_bench.whatif.run_graph import OWN, VALUES

if TYPE_CHECKING:
    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.whatif.event_graph import Mask, Times

_UNEVEN = 1.05
"""Load over the mean from which experts are uneven: a balanced router's tokens vary by a few percent."""


def expert_loads(traffic: pl.DataFrame) -> dict[int, float]:
    """Return the bytes that each rank receives in uneven all-to-alls, over the mean of its group's ranks.

    Tokens are sent and returned: the calls of a group whose received bytes differ between ranks show where
    the experts are.
    """
    calls = traffic.filter((pl.col("collective") == "all_to_all") & pl.col("own_sizes"))
    same = ["iteration", "group", "order"]
    spread = pl.col("received_bytes").max().over(same) - pl.col("received_bytes").min().over(same)
    uneven = calls.drop_nulls(["received_bytes", "rank"]).filter(spread > 0)
    by_rank = uneven.group_by("group", "rank").agg(pl.col("received_bytes").sum().cast(pl.Float64))
    loads = by_rank.with_columns(
        load=pl.col("received_bytes") / pl.col("received_bytes").mean().over("group")
    )
    rank_loads = {rank: float(load) for rank, load in loads.select("rank", "load").iter_rows()}
    return rank_loads if max(rank_loads.values(), default=0.0) > _UNEVEN else {}


def expert_work(gains: Gains, loads: dict[int, float]) -> Mask:
    """Return the kernels in every second interval between all-to-alls of a rank: the work of experts."""
    is_exchange = (pl.col("place") != "host") & (pl.col("collective") == "all_to_all")
    computes = (pl.col("place") == "device") & pl.col("kind").is_in(["compute", "fused"])
    order = (
        gains.operations.select(
            *("row", "trace", "rank", "start_ns"),
            exchange=is_exchange.fill_null(value=False),
            computes=computes.fill_null(value=False),
        )
        .filter(pl.col("exchange") | pl.col("computes"))
        .sort("trace", "start_ns", "row")
        .with_columns(done=pl.col("exchange").cast(pl.Int64).cum_sum().over("trace"))
    )
    expert_kernels = order.filter(
        pl.col("computes") & (pl.col("done") % 2 == 1) & pl.col("rank").is_in(list(loads))
    )
    return of_rows(gains, expert_kernels["row"])


def with_even_experts(gains: Gains, work: Mask, loads: dict[int, float]) -> Times:
    """Return the variant in which the work of experts takes the time of a mean load on every rank."""
    values = gains.graph.values.copy()
    rows = work.nonzero()[0]
    rank_loads = (
        gains.operations["rank"].replace_strict(loads, default=1.0, return_dtype=pl.Float64).to_numpy()
    )
    values[rows * VALUES + OWN] /= np.maximum(rank_loads[rows], 1e-9)
    return values
