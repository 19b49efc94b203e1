"""How far apart ranks are in the time they wait."""

from __future__ import annotations

from ccl_bench.analysis.communication.waits import by_rank_and_step
from ccl_bench.errors import NotMeasurable
from ccl_bench.frames import pl
from ccl_bench.metrics import Measurement, conditions, metric
from ccl_bench.metrics.rows import SECOND_NS, by_rank, ranks_in


def need_waits(waits: pl.DataFrame) -> None:
    """Raise NotMeasurable where no waiting time is known."""
    if waits.is_empty():
        raise NotMeasurable(
            "no symmetric collective could be matched over at least two ranks inside steps",
            fix="give the traces of all ranks; messages between two ranks and broadcasts tell no waiting",
        )


def lag_ns(waits: pl.DataFrame) -> float:
    """Return the mean over steps of the largest minus the smallest waiting of a rank, ns."""
    steps = (
        by_rank_and_step(waits)
        .group_by("iteration", "step")
        .agg((pl.col("wait_ns").max() - pl.col("wait_ns").min()).alias("lag_ns"))
    )
    return float(steps.select(pl.col("lag_ns").mean()).item())


@metric(unit="s", better="lower", applies=(conditions.several_ranks,))
def straggler_lag_16(waits: pl.DataFrame) -> Measurement:
    """Difference between the rank that waits most and the rank that waits least, in a step.

    Formula:
        straggler_lag_16 = mean over steps of (largest - smallest sum of waits of a rank)
        wait of a rank in a collective = its duration - the shortest duration of a member

    Caveats:
        Where members were not recorded, the shortest recorded duration is an upper bound of the
        transfer, and waits are lower bounds; `members_complete` says so. Rooted collectives, messages and
        uneven all-to-alls carry no waiting time and are left out.

    Reference:
        torch-tb-profiler's synchronising time; TraceLens `NcclAnalyser`.
    """
    need_waits(waits)
    per_rank = (
        by_rank_and_step(waits).group_by("rank").agg((pl.col("wait_ns").mean() / SECOND_NS).alias("wait_s"))
    )
    return Measurement(
        lag_ns(waits) / SECOND_NS,
        details={
            "wait_s_per_step": by_rank(per_rank, "wait_s"),
            "members_complete": bool(waits["complete"].all()),
        },
        window="matched collectives inside steps",
        ranks=ranks_in(waits),
    )
