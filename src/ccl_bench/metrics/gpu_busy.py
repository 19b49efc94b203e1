"""The metric `gpu_busy`: share of step time in which the device works."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.analysis.steps.steps import mean_step_ns, slowest, step_times
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import metric
from ccl_bench.metrics.shared.per_step import (
    few_steps,
    parts_by_rank,
    parts_by_step,
    share_by_device,
    share_of_steps,
    step_labels,
)
from ccl_bench.metrics.shared.waiting import divided, of_steps

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics import Measurement


@metric(unit="%", better="higher", aliases=("aggregate_gpu_utilization",), revision=4)
def gpu_busy(
    breakdown: pl.DataFrame,
    steps: pl.DataFrame,
    device_used: pl.DataFrame,
    communication_parts: pl.DataFrame | None = None,
) -> Measurement:
    """Share of the time of steps in which the device had work: kernels, copies or memory sets.

    Formula:
        gpu_busy = 100 * |U(work)| / time of steps, mean over ranks

    Caveats:
        Busy means that something was resident, not that the multiprocessors were full: see `sm`.
        Communication kernels that wait count as busy. `waiting_pct` is the share of the step in which
        nothing computed and communication only waited for late ranks, as far as known;
        `busy_without_waiting_pct` excludes it. On a run without a device the CPU stands in. A process that
        uses several devices has a share for each device, but no common one.

    Reference:
        "GPU Utilization" of torch-tb-profiler; copies count as work here.
    """
    busy = share_of_steps(breakdown, steps, "busy_ns")
    times = step_times(steps)
    listed = few_steps(slowest(times))
    details = {
        **busy.details,
        "step_s": mean_step_ns(times) / SECOND_NS,
        "longest_s_by_step": dict(zip(step_labels(listed), listed["duration_ns"] / SECOND_NS, strict=True)),
        "per_rank_parts_s_per_step": parts_by_rank(breakdown),
        "per_step_parts_s": parts_by_step(breakdown),
        **share_by_device(breakdown, device_used, "busy_ns", "window_ns"),
    }
    if communication_parts is not None and breakdown["communication_ns"].sum():
        each = divided(breakdown, of_steps(communication_parts, steps), "exposed_communication_ns")
        waiting = share_of_steps(each, steps, "waiting_ns")
        details["waiting_pct"] = waiting.value
        details["busy_without_waiting_pct"] = busy.value - waiting.value
        details["per_rank_waiting_pct"] = waiting.details["per_rank_pct"]
    return replace(busy, details=details)
