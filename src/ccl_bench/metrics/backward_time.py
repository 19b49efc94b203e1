"""The metric `backward_time`: time of the backward pass in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.device.phases import BACKWARD
from ccl_bench.metrics import metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import phase_time

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics import Measurement


@metric(unit="s", better="lower", applies=(checks.training,), revision=4)
def backward_time(phases: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Time in one step in which the device worked on the backward pass, communication left out.

    Work belongs to the phase that launched it. Backward work is work launched in a node of autograd
    (`autograd::engine::evaluate_function`), on one of autograd's threads, or in a range named as backward.

    Formula:
        backward_time = |U(kernels and copies launched by the backward pass)| in a step,
        mean over steps and ranks

    Caveats:
        Gradient accumulation (`AccumulateGrad`) and the reduction of gradients with its copies are
        excluded; the details list them. The forward work that activation checkpointing repeats is included;
        the details list the part that could be recognised: operators that record for autograd inside its
        nodes. A range that the user marked as backward may contain the loss.

    Reference:
        Launch correlation as in HolisticTraceAnalysis; torch/csrc/autograd/engine.cpp.
    """
    return phase_time(phases, steps, BACKWARD)
