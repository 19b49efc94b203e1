"""The metric `gpu_idle`: share of step time in which the device has no work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.metrics import metric
from ccl_bench.metrics.shared.per_step import share_of_steps

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics import Measurement


@metric(unit="%", better="lower", revision=4)
def gpu_idle(breakdown: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of the time of steps in which the device had no work at all.

    Formula:
        gpu_idle = 100 * (1 - |U(work)| / time of steps), mean over ranks

    Caveats:
        It describes the device: the host may be launching, loading data or waiting. Work inside CUDA graphs
        that the profiler did not record looks idle.

    Reference:
        HolisticTraceAnalysis `get_temporal_breakdown`, idle time.
    """
    return share_of_steps(breakdown, steps, "idle_ns")
