"""The metric `memory_fragmentation`: share of reserved device memory that no tensor uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.allocator import (
    PEAKS,
    STATE,
    WRITE,
    counter_values,
    label,
    need_devices,
    ranks_of,
    snapshot_devices,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.result.details import FragmentationDetails
    from ccl_bench.side_files import DeviceMemory, MemoryStats


@metric(unit="ratio", better="lower")
def memory_fragmentation(
    memory_stats: MemoryStats | None,
    memory_peaks: pl.DataFrame,
    memory_layouts: pl.DataFrame,
    memory_rates: pl.DataFrame,
) -> Measurement:
    """Share of the reserved device memory that no tensor used, on the device where it is highest.

    Formula:
        memory_fragmentation = max over devices of (reserved - allocated) / reserved

        It uses the peaks of both where `memory_stats.json` or the history of a memory snapshot shows them,
        else the values when the file was written; the details state which. For a snapshot, the details also
        have the other two common measures, at its end and when most memory was allocated: inactive split /
        reserved, and 1 - largest free block / all free blocks.

    Caveats:
        There is no single measure of fragmentation. The two peaks may be at different times. The allocator
        can reuse reserved free memory at once; only free parts of split blocks are unavailable to other
        programs. Only a snapshot's segments show the largest free block.

    Reference:
        torch.cuda.memory_stats; efficiency is active / reserved.
    """
    seen = snapshot_devices(memory_peaks, memory_layouts, memory_rates)
    devices = need_devices(memory_stats, seen)
    basis = PEAKS if _shares(devices, "allocated_bytes", "peak_") else STATE
    at = "peak_" if basis == PEAKS else ""
    used = _shares(devices, "allocated_bytes", at)
    if not used:
        raise NotMeasurable("the recorded counters lack reserved and allocated memory", fix=WRITE)
    unused = {device_label: 1 - share for device_label, share in used.items()}
    highest = max(unused, key=lambda device_label: unused[device_label])
    details: FragmentationDetails = {
        "basis": basis,
        "highest_device": highest,
        "per_device_ratio": unused,
        "per_device_reserved_bytes": counter_values(devices, f"{at}reserved_bytes"),
    }
    if efficiency := _shares(devices, "active_bytes", at):
        details["per_device_efficiency_ratio"] = efficiency
    if split := _shares(devices, "inactive_split_bytes", at):
        details["per_device_inactive_split_ratio"] = split
    scattered = {
        label(device): 1 - device.largest_free_bytes / device.free_bytes
        for device in devices
        if device.largest_free_bytes is not None and device.free_bytes
    }
    if scattered:
        details["per_device_scattered_ratio"] = scattered
    ratios = [name for name in memory_layouts.columns if name.endswith("_ratio")]
    layouts = memory_layouts.select("rank", "iteration", "device", "moment", *ratios)
    if not layouts.is_empty():
        details["snapshots"] = [
            {name: value for name, value in row.items() if value is not None}
            for row in layouts.iter_rows(named=True)
        ]
    return Measurement(unused[highest], details, f"allocator, {basis}", ranks_of(devices))


def _shares(devices: Iterable[DeviceMemory], part: str, at: str) -> dict[str, float]:
    """Return {device: part / reserved} where both are known and something is reserved."""
    shares = {}
    for device in devices:
        value, whole = getattr(device, f"{at}{part}"), getattr(device, f"{at}reserved_bytes")
        if value is not None and whole:
            shares[label(device)] = value / whole
    return shares
