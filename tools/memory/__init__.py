"""How much memory the devices took, and how well what was reserved was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

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
_RATES = ("allocations_per_s", "frees_per_s")
_NO_RATES = "not measurable: an allocator's counters hold no times; a memory snapshot with its history does"


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
        **_rates(peak),
        **origin(answers.of(*METRICS)),
    }


def _rates(peak: Result) -> dict[str, Any]:
    """Return allocations and frees in a second by device, from the histories of snapshots."""
    from ccl_bench.metrics.shared.allocator import label
    from ccl_bench.side_files import DeviceMemory

    found: dict[str, Any] = {}
    known = peak.details.get("per_device_peak_allocated_bytes", {})
    for row in peak.details.get("snapshots", ()):
        rank, device = row.get("rank"), row.get("device")
        who = str(rank) if str(rank) in known else label(DeviceMemory(rank, device))
        for name in _RATES:
            if row.get(name) is not None:
                found.setdefault(f"per_device_{name}", {})[who] = row[name]
    return found if found or peak.value is None else {"allocation_rate_reason": _NO_RATES}
