"""How much memory the devices took, and how well what was reserved was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, known_or_reason, origin, renamed

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ccl_bench.result import Result

METRICS = ("peak_memory_allocated", "memory_fragmentation")
TABLES = ("allocator_settings",)

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
_MOMENTS = {"peak": "at_peak", "snapshot": "at_dump"}
_SPLIT = "inactive_split_ratio"
_MEASURES = {"unused_ratio": "unused", _SPLIT: "inactive_split", "scattered_ratio": "scattered"}
_NO_SPLIT = "neither memory_stats.json with inactive_split_bytes nor a memory snapshot is in the run"
_NO_SETTINGS = "no memory snapshot is in the run, or it holds no settings"
_RATES = ("allocations_per_s", "frees_per_s")
_NO_RATES = "not measurable: an allocator's counters hold no times; a memory snapshot with its history does"


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return peaks, efficiency, three measures of fragmentation and counts of allocations by device.

    Unused is (reserved - allocated) / reserved, inactive split is over reserved, scattered is
    1 - largest free block / all free blocks, and efficiency is active / reserved. `fragmentation_kind`
    says of which moment they are; a memory snapshot also gives each at its peak and at the dump.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode, tables=TABLES))


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
        **known_or_reason("inactive_split", _NO_SPLIT, _inactive_split(fragmentation, ratios)),
        **_moments(fragmentation, ratios.get("per_device_unused_ratio", {})),
        **known_or_reason("allocator_settings", _NO_SETTINGS, _settings(answers)),
        **_rates(peak, allocated or {}),
        **origin(answers.of(*METRICS)),
    }


def _inactive_split(fragmentation: Result, ratios: dict[str, Any]) -> dict[str, Any]:
    """Return the highest share of inactive split memory on any device, and the moment it is of."""
    counted = ratios.get("per_device_inactive_split_ratio", {})
    rows = fragmentation.details.get("snapshots", ())
    splits = {"peaks of the counters": [*counted.values()]} if counted else {}
    for moment, kind in (("peak", "peak of the snapshot's history"), ("snapshot", "dump of the snapshot")):
        shares = [row[_SPLIT] for row in rows if row["moment"] == moment and _SPLIT in row]
        splits |= {kind: shares} if shares else {}
    for kind, shares in splits.items():
        return {_SPLIT: max(shares), "inactive_split_kind": kind}
    return {}


def _moments(fragmentation: Result, known_devices: Collection[str]) -> dict[str, dict[str, float]]:
    """Return each measure of fragmentation by device, at the peak of a snapshot's history and at its dump.

    Of several snapshots of a device the last one counts.
    """
    measures: dict[str, dict[str, float]] = {}
    rows = fragmentation.details.get("snapshots", ())
    for row in sorted(rows, key=lambda row: row.get("iteration", -1)):
        for name, short in _MEASURES.items():
            if name in row:
                key = f"per_device_{short}_{_MOMENTS[row['moment']]}_ratio"
                measures.setdefault(key, {})[_device_name(row, known_devices)] = row[name]
    return measures


def _settings(answers: Answers) -> dict[str, dict[str, int]]:
    """Return the settings of the allocator on which all snapshots agree."""
    table = answers.tables.get("allocator_settings")
    if table is None:
        return {}
    rows = table.drop_nulls("value").select("name", "value").unique(maintain_order=True)
    alike = rows.filter(rows["name"].is_unique())
    return {"allocator_settings": dict(alike.iter_rows())}


def _device_name(row: dict[str, Any], known_devices: Collection[str]) -> str:
    """Return the name of the device of a row: its rank alone if that is among `known_devices`."""
    from ccl_bench.metrics.shared.allocator import label
    from ccl_bench.side_files import DeviceMemory

    rank = row.get("rank")
    return str(rank) if str(rank) in known_devices else label(DeviceMemory(rank, row.get("device")))


def _rates(peak: Result, known_devices: Collection[str]) -> dict[str, Any]:
    """Return allocations and frees in a second by device, from the histories of snapshots."""
    rates: dict[str, Any] = {}
    for row in peak.details.get("snapshots", ()):
        for name in _RATES:
            if row.get(name) is not None:
                rates.setdefault(f"per_device_{name}", {})[_device_name(row, known_devices)] = row[name]
    return rates if rates or peak.value is None else {"allocation_rate_reason": _NO_RATES}
