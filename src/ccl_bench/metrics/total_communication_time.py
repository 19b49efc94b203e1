"""The metric `total_communication_time`: communication time in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.checks import need_communication
from ccl_bench.metrics.shared.per_step import seconds_by, time_per_step
from ccl_bench.metrics.shared.waiting import divided, of_steps, parts_by, parts_in_seconds

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.several_ranks,), revision=2)
def total_communication_time(
    breakdown: pl.DataFrame,
    communication_time: pl.DataFrame,
    steps: pl.DataFrame,
    communication_parts: pl.DataFrame | None = None,
    collective_parts: pl.DataFrame | None = None,
) -> Measurement:
    """Time in one step in which a GPU communicated, hidden or not.

    Formula:
        total_communication_time = |U(communication)| in a step, mean over steps and ranks

    Caveats:
        Concurrent calls count once; the details have the sum of durations by collective. It includes
        waiting for late peers: the details divide it into waiting, transfer and unknown, also for each
        collective.

    Reference:
        Communication time of HolisticTraceAnalysis `get_gpu_kernel_breakdown`, by step.
    """
    need_communication(breakdown, steps)
    unions, sums = (
        seconds_by(communication_time, steps, "collective", column) for column in ("union_ns", "duration_ns")
    )
    details: dict[str, Any] = {
        "summed_s": sum(sums.values()),
        "per_collective_s": unions,
        "per_collective_summed_s": sums,
    }
    if communication_parts is not None and collective_parts is not None:
        each = divided(breakdown, of_steps(communication_parts, steps), "communication_ns")
        details["parts_s"] = parts_in_seconds(each, steps)
        details["per_collective_parts_s"] = parts_by(collective_parts, steps, "collective", "time_ns")
    return time_per_step(breakdown, steps, "communication_ns", details)
