"""The metric `peak_memory_allocated`: peak device memory of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.units import GIGA
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.allocator import (
    WRITE,
    counter_values,
    holders_of,
    label,
    need_devices,
    ranks_of,
    snapshot_devices,
)

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.side_files import MemoryStats


_COUNTERS = (
    "peak_allocated_bytes",
    "peak_active_bytes",
    "peak_reserved_bytes",
    "allocations",
    "frees",
    "alloc_retries",
    "ooms",
)


_HOLDERS = 10


@metric(unit="GB", better="lower")
def peak_memory_allocated(
    memory_stats: MemoryStats | None,
    memory_peaks: pl.DataFrame,
    memory_layouts: pl.DataFrame,
    memory_rates: pl.DataFrame,
    memory_holders: pl.DataFrame,
) -> Measurement:
    """Peak of the memory that tensors used on one device, on the device where it is highest.

    Formula:
        peak_memory_allocated = max over devices of peak allocated bytes / 10^9

        from `memory_stats.json`: `allocated_bytes.all.peak` of `torch.cuda.memory_stats()`; for ranks that
        the file lacks, from a memory snapshot, whose history is replayed backwards from its final state.
        Details show which call stacks hold the peak.

    Caveats:
        The highest device counts because that one runs out of memory first; stages of a pipeline differ by
        design. Memory that PyTorch's allocator does not hand out, such as NCCL's buffers and the CUDA
        context, is not in it. Counters hold the peak since their last reset, a snapshot the peak since its
        history began. Blocks have the size that the allocator gives them; for blocks freed before the
        snapshot it follows from the allocator's rules.

    Reference:
        torch.cuda.memory_stats, torch.cuda.memory._snapshot; torchtitan logs max_active and max_reserved.
    """
    seen = snapshot_devices(memory_peaks, memory_layouts, memory_rates)
    devices = need_devices(memory_stats, seen)
    peaks = counter_values(devices, "peak_allocated_bytes")
    if not peaks:
        raise NotMeasurable("the recording holds no peak of the allocated memory", fix=WRITE)
    highest = max(peaks, key=lambda device_label: peaks[device_label])
    rank = next(device.rank for device in devices if label(device) == highest)
    counters = {name: values for name in _COUNTERS if (values := counter_values(devices, name))}
    details: dict[str, Any] = {
        "highest_device": highest,
        "imbalance_ratio": peaks[highest] * len(peaks) / sum(peaks.values()) if any(peaks.values()) else 1.0,
        **{f"per_device_{name}": values for name, values in counters.items()},
    }
    if not memory_peaks.is_empty():
        state = ("start_allocated_bytes", "peak_requested_bytes", "events", "contradictions", "inexact_bytes")
        rates = ("allocations_per_s", "frees_per_s", "allocated_bytes_per_s")
        key = ("trace", "device")
        histories = memory_peaks.join(memory_rates.select(*key, *rates), on=key, how="left")
        details["snapshots"] = [
            {name: value for name, value in row.items() if value is not None}
            for row in histories.select("rank", "iteration", "device", *state, *rates).to_dicts()
        ]
    details["holders"] = holders_of(memory_holders, memory_peaks, rank, _HOLDERS)
    windows = []
    if memory_stats and memory_stats.devices:
        windows.append("since the allocator's counters were reset")
    if seen:
        windows.append("history of the memory snapshots")
    return Measurement(peaks[highest] / GIGA, details, "; ".join(windows), ranks_of(devices))
