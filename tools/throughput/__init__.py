"""Tokens in a second, step times, and model FLOPs utilisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("throughput_tokens_sec", "iteration_wall_clock_time", "mfu")

_RATE = {
    "tokens_per_s_per_gpu": "per_gpu_tokens_per_s",
    "tokens_per_step": "tokens_per_step_count",
    "gpus": "gpus_count",
}
_TIMES = {
    "count": "iterations_count",
    "min": "iteration_min_s",
    "p50": "iteration_p50_s",
    "p95": "iteration_p95_s",
    "max": "iteration_max_s",
    "std": "iteration_std_s",
    "cv": "iteration_variation_ratio",
}
_DETAILS = {"per_rank_s": "per_rank_iteration_s", "per_step_s": "per_step_iteration_s"}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return tokens per second of the job and of one GPU, statistics of the step time, and MFU."""
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    rate, time, mfu = answers.of(*METRICS)
    return {
        **answer("tokens_per_s", rate),
        **renamed(rate.details, _RATE),
        **answer("iteration_mean_s", time),
        **renamed(time.details.get("spread_s", {}), _TIMES),
        **renamed(time.details, _DETAILS),
        **answer("mfu_pct", mfu),
        **origin(answers.of(*METRICS)),
    }
