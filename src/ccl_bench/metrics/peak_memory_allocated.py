"""How much device memory tensors took at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.allocator import WRITE, need_devices, ranks_of, told

if TYPE_CHECKING:
    from ccl_bench.card import MemoryStats

GIGA = 1e9

_COUNTERS = (
    "peak_allocated_bytes",
    "peak_active_bytes",
    "peak_reserved_bytes",
    "allocations",
    "frees",
    "alloc_retries",
    "ooms",
)


@metric(unit="GB", better="lower")
def peak_memory_allocated(memory_stats: MemoryStats | None) -> Measurement:
    """Most memory that tensors took on one device at any time, on the device where that is highest.

    Formula:
        peak_memory_allocated = max over devices of peak allocated bytes / 10^9

        from `memory_stats.json`: `allocated_bytes.all.peak` of `torch.cuda.memory_stats()`.

    Caveats:
        The highest device counts because that one runs out of memory first; stages of a pipeline
        differ by design. Memory that PyTorch's allocator does not hand out, such as NCCL's buffers and
        the CUDA context, is not in it. Peaks count from the last reset of the counters.

    Reference:
        torch.cuda.memory_stats; torchtitan logs the same as max_active and max_reserved.
    """
    devices = need_devices(memory_stats)
    peaks = told(devices, "peak_allocated_bytes")
    if not peaks:
        raise NotMeasurable("the recorded counters hold no peak of the allocated memory", fix=WRITE)
    highest = max(peaks, key=lambda who: peaks[who])
    counters = {name: values for name in _COUNTERS if (values := told(devices, name))}
    return Measurement(
        peaks[highest] / GIGA,
        details={"highest_device": highest, **{f"per_device_{name}": v for name, v in counters.items()}},
        window="since the allocator's counters were reset",
        ranks=ranks_of(devices),
    )
