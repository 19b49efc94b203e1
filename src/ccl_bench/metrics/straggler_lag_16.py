"""The metric `straggler_lag_16`: difference in waiting between ranks."""

from __future__ import annotations

from ccl_bench.analysis.communication.stragglers import in_steps_of, lags, waits_by_rank_and_step
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import RANK_STEP_TIMES, step_time_lag
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    by_step,
    label,
    mean_of,
    need_rows,
    ranks_in,
    step_labels,
)
from ccl_bench.metrics.shared.waiting import with_waiting_elsewhere

_MOST_WAITS = 100_000
"""Ranks times steps up to which details list the waiting of each; of more, a result would have megabytes."""


def need_waits(waits: pl.DataFrame, steps: pl.DataFrame, breakdown: pl.DataFrame | None) -> None:
    """Raise NotMeasurable if no waiting time is known."""
    if not waits.is_empty():
        return
    if breakdown is not None and not breakdown.is_empty():
        checks.need_communication(breakdown, steps)
    message = "no symmetric collective could be matched over at least two ranks inside whole steps"
    fix = "nothing to fix: messages between two ranks and broadcasts show no waiting"
    if is_single := steps["trace"].n_unique() == 1:
        message, fix = "only one rank has a trace, but waiting compares ranks", "give the traces of all ranks"
    raise NotMeasurable(message, fix=fix, is_repairable=True, causes=() if is_single else checks.UNMATCHED)


def lag_of_step_times(step_times: pl.DataFrame) -> Measurement:
    """Return the spread of the mean steps of the ranks in a file of step times."""
    lag = step_time_lag(step_times)
    details = {"source": RANK_STEP_TIMES, "per_rank_s": lag.per_rank_s, "slowest_rank": lag.slowest_rank}
    return Measurement(lag.lag_s, details, RANK_STEP_TIMES, lag.ranks, [lag.finding])


@metric(
    unit="s",
    better="lower",
    applies=(checks.several_ranks,),
    otherwise=(lag_of_step_times,),
    revision=2,
)
def straggler_lag_16(
    waits: pl.DataFrame,
    steps: pl.DataFrame,
    other_waits: pl.DataFrame | None = None,
    breakdown: pl.DataFrame | None = None,
) -> Measurement:
    """Difference between the rank that waits most and the rank that waits least, in a step.

    Formula:
        straggler_lag_16 = mean over steps of (largest - smallest sum of waits of a rank)
        wait of a rank in a collective = its duration - the shortest duration of a member

        where no trace shows waiting, from `step_times_per_rank.json`:
        largest - smallest mean step of a rank, over the steps that all ranks have

    Caveats:
        Where members were not recorded, the shortest recorded duration is an upper bound of the transfer,
        and waits are lower bounds; `members_complete` says so. Only steps count in which every trace has
        the same collectives; if there are none, traces that lack some are left out. Rooted collectives,
        messages and uneven all-to-alls show no waiting time and are excluded; `waiting_elsewhere_s` is the
        exposed waiting in them, by aligned clocks, and a finding from 5 % of the step on. Step times show
        less: ranks that wait for each other end a step together, however late one of them was.

    Reference:
        torch-tb-profiler's synchronising time; TraceLens `NcclAnalyser`.
    """
    need_rows(steps, "steps", RECORD)
    waits = in_steps_of(waits, steps)
    need_waits(waits, steps, breakdown)
    rows = waits_by_rank_and_step(waits)
    per_rank = rows.group_by("rank").agg((pl.col("wait_ns").mean() / SECOND_NS).alias("wait_s"))
    of_steps = rows.group_by("rank", "iteration", "step").agg(pl.col("wait_ns").sum() / SECOND_NS)
    waiting: dict[str, dict[str, float]] = {}
    if of_steps.height <= _MOST_WAITS:
        ordered = of_steps.sort("rank", "iteration", "step", nulls_last=True)
        for rank, step, wait in zip(ordered["rank"], step_labels(ordered), ordered["wait_ns"], strict=True):
            waiting.setdefault(label(rank), {})[step] = wait
    measurement = Measurement(
        mean_of(lags(waits), "lag_ns") / SECOND_NS,
        details={
            "wait_s_per_step": by_rank(per_rank, "wait_s"),
            "per_step_s": by_step(lags(waits).with_columns(pl.col("lag_ns") / SECOND_NS), "lag_ns"),
            "per_rank_per_step_wait_s": waiting,
            "members_complete": bool(waits["complete"].all()),
        },
        window="matched collectives inside steps",
        ranks=ranks_in(waits),
    )
    return with_waiting_elsewhere(measurement, other_waits, steps)
