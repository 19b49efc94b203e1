"""The metric `communication_fraction`: share of step time with communication."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.metrics import metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.checks import need_communication
from ccl_bench.metrics.shared.per_step import share_of_steps
from ccl_bench.metrics.shared.waiting import divided, of_steps, parts_in_percent

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics import Measurement


@metric(unit="%", better="lower", applies=(checks.several_ranks,), revision=3)
def communication_fraction(
    breakdown: pl.DataFrame, steps: pl.DataFrame, communication_parts: pl.DataFrame | None = None
) -> Measurement:
    """Share of the time of steps in which communication ran, hidden under compute or not.

    Formula:
        communication_fraction = 100 * |U(communication)| / time of steps, mean over ranks

    Caveats:
        A communication kernel that waits for a late peer counts as communication; `parts_pct` divides the
        share into waiting, transfer and unknown. The part that delays the step is
        `exposed_communication_time`.

    Reference:
        Communication time of HolisticTraceAnalysis `get_gpu_kernel_breakdown`, as a share of steps.
    """
    need_communication(breakdown, steps)
    share = share_of_steps(breakdown, steps, "communication_ns")
    if communication_parts is None:
        return share
    each = divided(breakdown, of_steps(communication_parts, steps), "communication_ns")
    return replace(share, details={**share.details, "parts_pct": parts_in_percent(each, "window_ns")})
