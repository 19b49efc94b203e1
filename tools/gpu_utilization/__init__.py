"""How much of the time the devices work, and how much of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.units import SECOND_NS
from tools.answers import Answers, answer, answers_of, known_or_reason, origin, renamed, share_pct

if TYPE_CHECKING:
    from pathlib import Path

METRICS = (
    "gpu_busy",
    "gpu_idle",
    "sm",
    "idle_breakdown",
    "launch_overhead",
    "memory_bandwidth_utilization",
    "average_memory_bandwidth",
    "compute_intensity",
)
TABLES = ("breakdown", "host_time")

_NO_STEP = "no step of a trace has a length"
_NO_OPERATORS = "the traces hold no operators of the CPU in any step"

_BUSY = {"per_rank_pct": "per_rank_busy_pct", "per_rank_s_per_step": "per_rank_busy_s"}
_IDLE = {"per_rank_pct": "per_rank_idle_pct", "per_rank_s_per_step": "per_rank_idle_s"}
_CAUSES = {
    "idle_s": "idle_s",
    "host_wait_s": "idle_waiting_for_host_s",
    "kernel_wait_s": "idle_waiting_for_kernel_s",
    "other_wait_s": "idle_other_s",
}
_INTENSITY = {"flops_per_step": "matrix_product_flops_count", "basis": "compute_intensity_kind"}
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
    """Return the shares of busy and idle time, why it is idle, and how much of the device kernels occupy.

    Compute efficiency is the share of a step in which kernels compute; CPU overhead is the time in which a
    CPU thread runs operators, launch overhead the time of calls that launch work on the device.
    Memory bandwidth is that of copies, compute intensity the bound that the shapes of operators give.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode, tables=TABLES))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    busy, idle, sm, causes, launching, used, copied, intensity = answers.of(*METRICS)
    return {
        **answer("busy_pct", busy),
        **answer("idle_pct", idle),
        **answer("sm_pct", sm),
        **answer("idle_waiting_for_host_pct", causes),
        **renamed(causes.details, _CAUSES),
        **renamed(busy.details, _BUSY),
        **renamed(idle.details, _IDLE),
        **renamed(sm.details, _SM),
        **_compute_efficiency(answers),
        **_cpu_overhead(answers),
        **answer("launch_overhead_s", launching),
        **answer("memory_bandwidth_pct", used),
        **answer("copy_bandwidth_gb_per_s", copied),
        **answer("compute_intensity_flop_per_byte", intensity),
        **renamed(intensity.details, _INTENSITY),
        **origin(answers.of(*METRICS)),
    }


def _compute_efficiency(answers: Answers) -> dict[str, Any]:
    """Return the share of steps in which kernels computed, fused with communication or not."""
    table, share = answers.tables.get("breakdown"), None
    if table is not None and not table.is_empty():
        computing = table.with_columns(computing_ns=table["compute_ns"] + table["fused_ns"])
        share = share_pct(computing, "computing_ns", "window_ns")
    return known_or_reason("compute_efficiency", _NO_STEP, {"compute_efficiency_pct": share})


def _cpu_overhead(answers: Answers) -> dict[str, Any]:
    """Return the time in operators of the CPU in one step, and its share."""
    table = answers.tables.get("host_time")
    overhead: dict[str, Any] = {}
    if table is not None and not table.is_empty() and table["operators_ns"].sum():
        overhead["cpu_overhead_s"] = table["operators_ns"].sum() / table.height / SECOND_NS
        overhead["cpu_overhead_pct"] = share_pct(table, "operators_ns", "window_ns")
    return known_or_reason("cpu_overhead", _NO_OPERATORS, overhead)
