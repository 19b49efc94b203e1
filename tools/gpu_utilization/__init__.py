"""How much of the time the devices work, and how much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("gpu_busy", "gpu_idle", "sm", "idle_breakdown")

_BUSY = {"per_rank_pct": "per_rank_busy_pct", "per_rank_s_per_step": "per_rank_busy_s"}
_IDLE = {"per_rank_pct": "per_rank_idle_pct", "per_rank_s_per_step": "per_rank_idle_s"}
_CAUSES = {
    "idle_s": "idle_s",
    "host_wait_s": "idle_waiting_for_host_s",
    "kernel_wait_s": "idle_waiting_for_kernel_s",
    "other_wait_s": "idle_other_s",
}
_SM = {
    "kind": "sm_kind",
    "compute_pct": "sm_compute_pct",
    "communication_pct": "sm_communication_pct",
    "estimated_achieved_occupancy_pct": "achieved_occupancy_pct",
    "per_rank_pct": "per_rank_sm_pct",
}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the shares of busy and idle time, why it is idle, and how much of the device kernels occupy."""
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    busy, idle, sm, causes = answers.of(*METRICS)
    return {
        **answer("busy_pct", busy),
        **answer("idle_pct", idle),
        **answer("sm_pct", sm),
        **answer("idle_waiting_for_host_pct", causes),
        **renamed(causes.details, _CAUSES),
        **renamed(busy.details, _BUSY),
        **renamed(idle.details, _IDLE),
        **renamed(sm.details, _SM),
        **origin(answers.of(*METRICS)),
    }
