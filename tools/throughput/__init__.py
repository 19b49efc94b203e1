"""Tokens in a second, step times, and model FLOPs utilisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, known_or_reason, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

METRICS = ("throughput_tokens_sec", "iteration_wall_clock_time", "mfu")

_NO_RANKS = "no source gives step times of single ranks together with the tokens of a step and the GPUs"

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
    """Return tokens per second of the job, of one GPU and of each rank, statistics of the step time, and MFU.

    A rank's throughput is its share of the tokens of a step over its own mean step time.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    rate, time, mfu = answers.of(*METRICS)
    return {
        **answer("tokens_per_s", rate),
        **renamed(rate.details, _RATE),
        **known_or_reason("per_rank_tokens", _NO_RANKS, {"per_rank_tokens_per_s": _per_rank(rate, time)}),
        **answer("iteration_mean_s", time),
        **renamed(time.details.get("spread_s", {}), _TIMES),
        **renamed(time.details, _DETAILS),
        **answer("mfu_pct", mfu),
        **origin(answers.of(*METRICS)),
    }


def _per_rank(rate: Result, time: Result) -> dict[str, float]:
    """Return the tokens of one GPU and step over the mean step time of each rank."""
    tokens, gpus = rate.details.get("tokens_per_step"), rate.details.get("gpus")
    times: dict[str, float] = time.details.get("per_rank_s", {})
    if not tokens or not gpus:
        return {}
    return {rank: tokens / gpus / seconds for rank, seconds in times.items() if seconds}
