"""How much of communication is hidden under compute, and where the time of a step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("comm_comp_overlap", "comm_comp_overlap_16")

_PARTS = {
    "window": "step_s",
    "compute": "compute_s",
    "fused": "fused_s",
    "exposed_communication": "exposed_communication_s",
    "exposed_memory": "exposed_memory_s",
    "idle": "idle_s",
}
_DETAILS = {
    "exposed_communication_pct_of_step": "exposed_communication_pct",
    "per_rank_pct": "per_rank_overlap_pct",
}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the overlap, the communication that is exposed, and the parts of a mean step."""
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    share, ratio = answers.of(*METRICS)
    return {
        **answer("overlap_pct", share),
        **answer("overlap_ratio", ratio),
        **renamed(share.details, _DETAILS),
        **renamed(share.details.get("mean_step_s", {}), _PARTS),
        **origin(answers.of(*METRICS)),
    }
