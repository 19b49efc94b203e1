"""The metric `optimizer_time`: time of the optimizer in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.device.phases import OPTIMIZER
from ccl_bench.metrics import metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import phase_time

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics import Measurement


@metric(unit="s", better="lower", applies=(checks.training,), revision=3)
def optimizer_time(phases: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Time in one step in which the device worked for the optimizer, communication left out.

    Work belongs to the phase that launched it: here, work launched inside `Optimizer.step#...` or a range
    with such a name.

    Formula:
        optimizer_time = |U(kernels and copies launched by the optimizer)| in a step,
        mean over steps and ranks

    Caveats:
        Gradient clipping is included only where it runs inside those ranges; zeroing gradients is excluded.
        Work whose launch was not recorded, such as the rest of a step before the recording began, belongs
        to no phase.

    Reference:
        torch/optim/optimizer.py, `profile_hook_step`.
    """
    return phase_time(phases, steps, OPTIMIZER)
