"""Which rank keeps the others waiting, what that costs, and how unevenly ranks work."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from ccl_bench.base.units import SECOND_NS
from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("straggler", "straggler_lag_16", "load_imbalance_ratio", "iteration_wall_clock_time")
TABLES = ("waits", "steps", "step_times")


_WHO = {
    "slowest_rank": "slowest_rank",
    "late_ranks": "late_ranks",
    "noise_floor_ratio": "noise_floor_ratio",
    "wait_s_per_step": "per_rank_wait_s",
    "arrived_last_count": "per_rank_arrived_last_count",
    "caused_wait_s_per_step": "per_rank_caused_wait_s",
    "persistence_ratio": "persistence_ratio",
}
_LOAD = {
    "busiest_rank": "busiest_rank",
    "max_s": "compute_max_s",
    "mean_s": "compute_mean_s",
    "min_s": "compute_min_s",
    "per_rank_s": "per_rank_compute_s",
}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the lateness of each rank, the imbalance of compute, and the share of time spent waiting.

    The rank that waits least is late; where nobody is late beyond the noise, `slowest_rank` is "none".
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode, tables=TABLES))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    straggler, lag, load, time = answers.of(*METRICS)
    groups = straggler.details.get("per_group", {})
    return {
        **answer("straggler_ratio", straggler),
        **answer("straggler_lag_s", lag),
        **renamed(straggler.details, _WHO),
        **({"per_group_lag_s": {name: group["lag_s"] for name, group in groups.items()}} if groups else {}),
        **({"cause_kind": straggler.details["cause"]["kind"]} if straggler.details.get("cause") else {}),
        **answer("load_imbalance_ratio", load),
        **renamed(load.details, _LOAD),
        **_synchronisation(answers),
        **answer("iteration_mean_s", time),
        **_spread(answers),
        **origin(answers.of(*METRICS)),
    }


def _synchronisation(answers: Answers) -> dict[str, float]:
    """Return waiting of all ranks in all steps over the length of those steps."""
    waits, steps = answers.tables.get("waits"), answers.tables["steps"]
    length_ns = (steps["end_ns"] - steps["start_ns"]).sum()
    if waits is None or waits.is_empty() or not length_ns:
        return {}
    return {"synchronisation_overhead_ratio": waits["wait_ns"].sum() / length_ns}


def _spread(answers: Answers) -> dict[str, float]:
    """Return the deviation between ranks of the length of one step, mean over steps."""
    ranked = answers.tables["step_times"].drop_nulls("rank")
    steps = ranked.partition_by("iteration", "step")
    spreads = [statistics.stdev(step["duration_ns"]) for step in steps if step.height > 1]
    return {"iteration_std_across_ranks_s": statistics.fmean(spreads) / SECOND_NS} if spreads else {}
