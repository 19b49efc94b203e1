"""How much of a step communicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.metrics import metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.checks import need_communication
from ccl_bench.metrics.shared.per_step import share_of_steps

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.metrics import Measurement


@metric(unit="%", better="lower", applies=(checks.several_ranks,), revision=2)
def communication_fraction(breakdown: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of the time of steps in which communication ran, hidden under compute or not.

    Formula:
        communication_fraction = 100 * |U(communication)| / time of steps, mean over ranks

    Caveats:
        A communication kernel that waits for a late peer counts as communication. What of it
        delays the step is `exposed_communication_time`.

    Reference:
        Communication time of HolisticTraceAnalysis `get_gpu_kernel_breakdown`, as a share of steps.
    """
    need_communication(breakdown)
    return share_of_steps(breakdown, steps, "communication_ns")
