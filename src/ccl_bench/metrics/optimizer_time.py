"""How long the optimizer takes."""

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

    Work belongs to the phase that launched it: what was launched inside `Optimizer.step#...`,
    or a range that is named so.

    Formula:
        optimizer_time = |U(kernels and copies launched by the optimizer)| in a step,
        mean over steps and ranks

    Caveats:
        Clipping of gradients is in it only where it runs inside those ranges; zeroing them is not.
        Work that the trace shows without its launch, such as the rest of a step before
        recording began, belongs to no phase.

    Reference:
        torch/optim/optimizer.py, `profile_hook_step`.
    """
    return phase_time(phases, steps, OPTIMIZER)
