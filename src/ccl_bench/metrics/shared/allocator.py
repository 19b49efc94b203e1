"""Device memory for metrics: devices from allocator counters and memory snapshots."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.side_files import DeviceMemory, MemoryStats

SNAPSHOT = "snapshot"
_FRAMES = 5
_KEY = ["rank", "device"]


def snapshot_devices(
    memory_peaks: pl.DataFrame, memory_layouts: pl.DataFrame, memory_rates: pl.DataFrame
) -> tuple[DeviceMemory, ...]:
    """Return the devices of all snapshots: peaks of any window, the state in the last one.

    A device without a number is the only one on which its rank reserved memory.
    """
    if memory_peaks.is_empty():
        return ()
    from ccl_bench.side_files import DeviceMemory  # the card's models take longer to load than all metrics

    state = memory_layouts.filter(pl.col("moment") == SNAPSHOT)
    last = pl.col("iteration").fill_null(-1).arg_max()
    peaks = memory_peaks.group_by(_KEY).agg(
        pl.col("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes").max(), pl.col("ooms").sum()
    )
    states = state.group_by(_KEY).agg(
        pl.col(
            "allocated_bytes",
            "active_bytes",
            "reserved_bytes",
            "inactive_split_bytes",
            "free_bytes",
            "largest_free_bytes",
        ).get(last)
    )
    counts = memory_rates.group_by(_KEY).agg(pl.col("allocations", "frees").sum())
    rows = peaks
    for part in (states, counts):
        rows = rows.join(part, on=_KEY, how="left", nulls_equal=True)
    used = rows.filter((pl.col("reserved_bytes") > 0) | pl.col("peak_allocated_bytes").is_not_null())
    alone = pl.when(pl.len().over("rank") > 1).then("device").alias("device")
    ordered = used.sort(_KEY, nulls_last=True).with_columns(alone)
    return tuple(DeviceMemory(**row) for row in ordered.iter_rows(named=True))


def merge_devices(counted: Sequence[DeviceMemory], seen: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """Return devices as counters show them, completed by snapshots, then those of snapshots alone.

    Counters come first because they cover the whole run: a history may miss the peak.
    """
    by_key = {(device.rank, device.device): device for device in seen}
    merged = []
    for device in counted:
        also = by_key.pop((device.rank, device.device), None)
        lacking = [each.name for each in fields(device) if getattr(device, each.name) is None] if also else ()
        merged.append(replace(device, **{name: getattr(also, name) for name in lacking}))
    counted_ranks = {device.rank for device in counted}
    return (*merged, *(device for device in by_key.values() if device.rank not in counted_ranks))


def holders_of(
    memory_holders: pl.DataFrame, memory_peaks: pl.DataFrame, rank: int | None, most: int
) -> list[dict[str, Any]]:
    """Return the call stacks that hold most of a rank's highest peak, of the device that had it."""
    is_of_rank = pl.col("rank").eq_missing(pl.lit(rank, dtype=pl.Int64))
    highest = memory_peaks.filter(is_of_rank).drop_nulls("peak_order").sort("peak_allocated_bytes").tail(1)
    holders = memory_holders.join(highest.select("trace", "device"), on=["trace", "device"], how="semi")
    rows = holders.sort("bytes", descending=True, maintain_order=True).head(most)
    return [
        {
            "bytes": row["bytes"],
            "blocks_count": row["blocks"],
            **({"category": row["category"]} if row["category"] else {}),
            "is_before_history": row["is_before_history"],
            "frames": [*(row["frames"] or ())][:_FRAMES],
        }
        for row in rows.iter_rows(named=True)
    ]


WRITE = (
    "write torch.cuda.memory_stats() of each rank into memory_stats.json at the end, or dump a snapshot "
    "with torch.cuda.memory._dump_snapshot() after torch.cuda.memory._record_memory_history()"
)

PEAKS, STATE = "peaks", "state when written"


def need_devices(memory_stats: MemoryStats | None, seen: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """Return the devices of a side file and those `seen` in snapshots; NotMeasurable if there is none."""
    devices = merge_devices(memory_stats.devices if memory_stats else (), seen)
    if not devices:
        message = "the run has no memory_stats.json with an allocator's counters and no memory snapshot"
        raise NotMeasurable(message, fix=WRITE)
    return devices


def label(device: DeviceMemory) -> str:
    """Return the name of a device in details: its rank, its own number, or both."""
    if device.rank is None:
        return "unknown" if device.device is None else f"device {device.device}"
    return str(device.rank) if device.device is None else f"{device.rank}, device {device.device}"


def counter_values(devices: Iterable[DeviceMemory], name: str) -> dict[str, int]:
    """Return {device: value} of one counter, for the devices that have it."""
    values = {label(device): getattr(device, name) for device in devices}
    return {device_label: value for device_label, value in values.items() if value is not None}


def ranks_of(devices: Iterable[DeviceMemory]) -> list[int]:
    """Return the ranks whose devices are known."""
    return sorted({device.rank for device in devices if device.rank is not None})
