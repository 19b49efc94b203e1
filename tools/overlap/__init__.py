"""How much of communication is hidden under compute, and where the time of a step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.units import SECOND_NS
from tools.answers import Answers, answer, answers_of, known_or_reason, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

_BUBBLE = {"fraction_ratio": "bubble_ratio", "efficiency_ratio": "pipeline_efficiency_ratio"}
METRICS = ("comm_comp_overlap", "comm_comp_overlap_16", "bubble_size_pipeline")
TABLES = ("waits", "steps")

_NO_WAIT = "no collectives could be matched across ranks, so waiting is not separate from moving data"

_PARTS = {
    "window": "step_s",
    "compute": "compute_s",
    "fused": "fused_s",
    "exposed_communication": "exposed_communication_s",
    "exposed_memory": "exposed_memory_s",
    "idle": "idle_s",
}
_DETAILS = {
    "overlap_s_per_step": "overlap_s",
    "exposed_communication_pct_of_step": "exposed_communication_pct",
    "per_rank_pct": "per_rank_overlap_pct",
}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the overlap, the communication that is exposed, the parts of a mean step, and bubbles.

    Times are of a step, mean over ranks. `overlap_s` is the time in which communication and compute run at
    once; `bubble_s` is the idle time of a pipeline's stage, `pipeline_efficiency_ratio` is 1 - bubble / step;
    `communication_wait_s` is how long a rank waits in collectives for the last one to arrive, in any run.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode, tables=TABLES))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    share, ratio, bubble = answers.of(*METRICS)
    return {
        **answer("overlap_pct", share),
        **answer("overlap_ratio", ratio),
        **renamed(share.details, _DETAILS),
        **renamed(share.details.get("mean_step_s", {}), _PARTS),
        **answer("bubble_s", bubble),
        **renamed(bubble.details, _BUBBLE),
        **known_or_reason("communication_wait", _NO_WAIT, {"communication_wait_s": _wait(answers)}),
        **origin(answers.of(*METRICS)),
    }


def _wait(answers: Answers) -> float | None:
    """Return the mean over ranks and steps of the time spent waiting for late ranks, s."""
    waits, steps = answers.tables.get("waits"), answers.tables.get("steps")
    if waits is None or waits.is_empty() or steps is None or steps.is_empty():
        return None
    mean_s: float = waits["wait_ns"].sum() / steps.height / SECOND_NS
    return mean_s
