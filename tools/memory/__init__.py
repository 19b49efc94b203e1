"""How much memory the devices took, and how well what was reserved was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("peak_memory_allocated", "memory_fragmentation")

_PEAKS = {
    "per_device_peak_allocated_bytes": "per_device_peak_allocated_bytes",
    "per_device_peak_active_bytes": "per_device_peak_active_bytes",
    "per_device_peak_reserved_bytes": "per_device_peak_reserved_bytes",
    "per_device_allocations": "per_device_allocations_count",
    "per_device_frees": "per_device_frees_count",
    "per_device_alloc_retries": "per_device_alloc_retries_count",
    "per_device_ooms": "per_device_oom_count",
}
_RATIOS = {
    "per_device_efficiency_ratio": "per_device_efficiency_ratio",
    "per_device_ratio": "per_device_unused_ratio",
    "per_device_inactive_split_ratio": "per_device_inactive_split_ratio",
    "per_device_scattered_ratio": "per_device_scattered_ratio",
    "basis": "fragmentation_kind",
}
_RATES = "not measurable: the counters of an allocator hold no times, so no rate of allocations"


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return peaks, efficiency, three measures of fragmentation and counts of allocations by device.

    Unused is (reserved - allocated) / reserved, inactive split is over reserved, scattered is
    1 - largest free block / all free blocks, and efficiency is active / reserved.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    peak, fragmentation = answers.of(*METRICS)
    peaks = renamed(peak.details, _PEAKS)
    ratios = renamed(fragmentation.details, _RATIOS)
    allocated = peaks.get("per_device_peak_allocated_bytes")
    highest = {"peak_allocated_bytes": max(allocated.values())} if allocated else answer("", peak)
    lowest = ratios.get("per_device_efficiency_ratio")
    return {
        **highest,
        **peaks,
        **answer("unused_ratio", fragmentation),
        **({"efficiency_ratio": min(lowest.values())} if lowest else {}),
        **ratios,
        **({"allocation_rate_reason": _RATES} if allocated else {}),
        **origin(answers.of(*METRICS)),
    }
