"""Which rank keeps the others waiting, and what that costs."""

from __future__ import annotations

from typing import Any

from ccl_bench.analysis.step_times import slowest
from ccl_bench.analysis.waits import by_rank_and_step
from ccl_bench.frames import pl
from ccl_bench.metrics import Measurement, conditions, metric
from ccl_bench.metrics.rows import SECOND_NS, by_rank, label, ranks_in
from ccl_bench.metrics.straggler_lag_16 import lag_ns, need_waits

NOISE_FLOOR = 0.01
"""Share of the step below which nobody is called late."""

LATE_SHARE = 0.5
"""A rank is late when it waits less than this share of what the longest-waiting rank does."""


@metric(unit="ratio", better="lower", applies=(conditions.several_ranks,))
def straggler(waits: pl.DataFrame, step_times: pl.DataFrame, breakdown: pl.DataFrame) -> Measurement:
    """Time that ranks lose to their slowest peer, as a share of the step.

    Formula:
        straggler = straggler_lag / iteration_wall_clock_time
        straggler_lag = mean over steps of (max over ranks of waiting - min over ranks of waiting)

    Caveats:
        The rank that waits least is late and the one that waits most is its victim, so summed
        communication time points at the wrong one. Below 1 % of the step the answer is "none". Only
        symmetric collectives tell waiting (not broadcasts, messages and uneven all-to-alls). Stages of a
        pipeline arrive apart by design: read the groups one by one. The cause is where late ranks
        spend more time than the others: computing, copying, or with an idle device, which is the host.

    Reference:
        Waiting as duration beyond the shortest member's: torch-tb-profiler and TraceLens; needs no clock.
    """
    need_waits(waits)
    lag = lag_ns(waits)
    step_ns = float(slowest(step_times).select(pl.col("duration_ns").mean()).item())
    per_rank = (
        by_rank_and_step(waits)
        .group_by("rank")
        .agg(
            (pl.col("wait_ns").mean() / SECOND_NS).alias("wait_s"),
            pl.col("arrived_last", "collectives").sum(),
            (pl.col("caused_ns").sum() / pl.col("step").n_unique() / SECOND_NS).alias("caused_s"),
        )
        .sort("wait_s", "rank")
    )
    significant = lag >= NOISE_FLOOR * step_ns
    late = _late(per_rank) if significant else []
    first = per_rank.row(0, named=True)
    return Measurement(
        lag / step_ns,
        details={
            "slowest_rank": label(first["rank"]) if significant else "none",
            "late_ranks": [label(rank) for rank in late],
            "straggler_lag_s": lag / SECOND_NS,
            "step_s": step_ns / SECOND_NS,
            "noise_floor_ratio": NOISE_FLOOR,
            "wait_s_per_step": by_rank(per_rank, "wait_s"),
            "arrived_last_count": by_rank(per_rank, "arrived_last"),
            "caused_wait_s_per_step": by_rank(per_rank, "caused_s"),
            "persistence_ratio": _persistence(waits, first["rank"]),
            "per_group": _per_group(waits),
            "cause": _cause(breakdown, late),
            "members_complete": bool(waits["complete"].all()),
        },
        window="matched collectives inside steps",
        ranks=ranks_in(waits),
    )


def _late(per_rank: pl.DataFrame) -> list[int | None]:
    """Return the ranks that wait less than half as long as the rank that waits most."""
    longest = per_rank["wait_s"].max()
    return per_rank.filter(pl.col("wait_s") < LATE_SHARE * pl.lit(longest))["rank"].to_list()


def _persistence(waits: pl.DataFrame, rank: int | None) -> float:
    """Return the share of steps in which `rank` was the one that waited least."""
    steps = (
        by_rank_and_step(waits)
        .sort("wait_ns", "rank")
        .group_by("iteration", "step")
        .agg(pl.col("rank").first())
    )
    return float(steps.select((pl.col("rank").eq_missing(pl.lit(rank, dtype=pl.Int64))).mean()).item())


def _per_group(waits: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return, for each process group, who waited least and how far apart its members are."""
    sums = waits.group_by("group", "dimension", "rank").agg(
        pl.col("wait_ns").sum(), pl.col("step").n_unique().alias("steps")
    )
    found = (
        sums.sort("wait_ns", "rank")
        .group_by("group", "dimension", maintain_order=True)
        .agg(
            pl.col("rank").first(),
            ((pl.col("wait_ns").max() - pl.col("wait_ns").min()) / pl.col("steps").max() / SECOND_NS).alias(
                "lag_s"
            ),
        )
    )
    return {
        group: {"dimension": dimension, "waits_least": label(rank), "lag_s": lag}
        for group, dimension, rank, lag in found.sort("group").iter_rows()
    }


def _cause(breakdown: pl.DataFrame, late: list[int | None]) -> dict[str, Any]:
    """Return where late ranks spend more time than the others, and how much more in a step, s."""
    if not late or breakdown.is_empty():
        return {}
    parts = {"compute": "compute_ns", "host": "idle_ns", "copies": "exposed_memory_ns"}
    is_late = pl.col("rank").is_in(late)
    others = breakdown.filter(~is_late)
    if others.is_empty():
        return {}
    late_mean, other_mean = (
        frame.select(pl.col(column).mean().alias(name) for name, column in parts.items()).row(0, named=True)
        for frame in (breakdown.filter(is_late), others)
    )
    excess = {name: (late_mean[name] - other_mean[name]) / SECOND_NS for name in parts}
    largest = max(excess, key=lambda name: excess[name])
    return {"kind": largest if excess[largest] > 0 else "unknown", "excess_s": excess}
