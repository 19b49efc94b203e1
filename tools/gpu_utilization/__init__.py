"""How much of the time the devices work, and how much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import answer, origin, renamed, results_of

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("gpu_busy", "gpu_idle", "sm")

_BUSY = {"per_rank_pct": "per_rank_busy_pct", "per_rank_s_per_step": "per_rank_busy_s"}
_IDLE = {"per_rank_pct": "per_rank_idle_pct", "per_rank_s_per_step": "per_rank_idle_s"}
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
    """Return the shares of busy and idle time, and of the multiprocessors that kernels could occupy."""
    found = results_of(METRICS, trace_dir, workload_card_path, profile_mode)
    busy, idle, sm = (found[name] for name in METRICS)
    return {
        **answer("busy_pct", busy),
        **answer("idle_pct", idle),
        **answer("sm_pct", sm),
        **renamed(busy.details, _BUSY),
        **renamed(idle.details, _IDLE),
        **renamed(sm.details, _SM),
        **origin(found.values()),
    }
