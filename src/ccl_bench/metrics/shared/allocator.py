"""What the metrics about device memory have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.shared.snapshots import together

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.side_files import DeviceMemory, MemoryStats

WRITE = (
    "write torch.cuda.memory_stats() of each rank into memory_stats.json at the end, or dump a snapshot "
    "with torch.cuda.memory._dump_snapshot() after torch.cuda.memory._record_memory_history()"
)

PEAKS, STATE = "peaks", "state when written"


def need_devices(memory_stats: MemoryStats | None, seen: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """Return the devices of a side file and those `seen` in snapshots; NotMeasurable where there is none."""
    devices = together(memory_stats.devices if memory_stats else (), seen)
    if not devices:
        message = "the run has no memory_stats.json with an allocator's counters and no memory snapshot"
        raise NotMeasurable(message, fix=WRITE)
    return devices


def label(device: DeviceMemory) -> str:
    """Return how a device is called in details: by its rank, its own number, or both."""
    if device.rank is None:
        return "unknown" if device.device is None else f"device {device.device}"
    return str(device.rank) if device.device is None else f"{device.rank}, device {device.device}"


def told(devices: Iterable[DeviceMemory], name: str) -> dict[str, int]:
    """Return {device: value} of one counter, for the devices that have it."""
    values = {label(device): getattr(device, name) for device in devices}
    return {who: value for who, value in values.items() if value is not None}


def ranks_of(devices: Iterable[DeviceMemory]) -> list[int]:
    """Return the ranks whose devices are told of."""
    return sorted({device.rank for device in devices if device.rank is not None})
