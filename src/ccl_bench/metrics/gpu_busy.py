"""How much of the time the device works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.metrics import metric
from ccl_bench.metrics.shared.shares import share_of_steps

if TYPE_CHECKING:
    from ccl_bench.frames import pl
    from ccl_bench.metrics import Measurement


@metric(unit="%", better="higher")
def gpu_busy(breakdown: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of the time of steps in which the device had work: kernels, copies or memory sets.

    Formula:
        gpu_busy = 100 * |U(work)| / time of steps, mean over ranks

    Caveats:
        Busy means that something was resident, not that the multiprocessors were full: see `sm`.
        Communication kernels that wait count as busy. On a run without a device the CPU stands in.

    Reference:
        "GPU Utilization" of torch-tb-profiler; copies count as work here.
    """
    return share_of_steps(breakdown, steps, "busy_ns")
