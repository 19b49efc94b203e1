"""What the metrics about device memory have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.errors import NotMeasurable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.card import DeviceMemory, MemoryStats

WRITE = "write torch.cuda.memory_stats() of each rank into memory_stats.json at the end of the run"

PEAKS, STATE = "peaks", "state when written"


def need_devices(memory_stats: MemoryStats | None) -> tuple[DeviceMemory, ...]:
    """Return the devices that a side file tells of, or raise NotMeasurable where there is none."""
    if memory_stats is None or not memory_stats.devices:
        raise NotMeasurable("the run has no memory_stats.json with an allocator's counters", fix=WRITE)
    return memory_stats.devices


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
