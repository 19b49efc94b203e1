"""How much of the time the device works."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.metrics import metric
from ccl_bench.metrics.shared.per_step import parts_by_rank, parts_by_step, share_by_device, share_of_steps

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.metrics import Measurement


@metric(unit="%", better="higher", aliases=("aggregate_gpu_utilization",), revision=3)
def gpu_busy(breakdown: pl.DataFrame, steps: pl.DataFrame, device_used: pl.DataFrame) -> Measurement:
    """Share of the time of steps in which the device had work: kernels, copies or memory sets.

    Formula:
        gpu_busy = 100 * |U(work)| / time of steps, mean over ranks

    Caveats:
        Busy means that something was resident, not that the multiprocessors were full: see `sm`.
        Communication kernels that wait count as busy. On a run without a device the CPU stands in. A
        process that uses several devices has a share for each of them, and none for all of them.

    Reference:
        "GPU Utilization" of torch-tb-profiler; copies count as work here.
    """
    found = share_of_steps(breakdown, steps, "busy_ns")
    parts = {
        "per_rank_parts_s_per_step": parts_by_rank(breakdown),
        "per_step_parts_s": parts_by_step(breakdown),
        **share_by_device(breakdown, device_used, "busy_ns", "window_ns"),
    }
    return replace(found, details={**found.details, **parts})
