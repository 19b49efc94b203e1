"""The metric `forward_time`: time of the forward pass in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.device.phases import BACKWARD, FORWARD
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import metric
from ccl_bench.metrics.shared.per_step import RECORD_OPERATORS, phase_time, rows_of

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics import Measurement


@metric(unit="s", better="lower", revision=3)
def forward_time(phases: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> Measurement:
    """Time in one step in which the device worked on the forward pass, communication left out.

    Work belongs to the phase that launched it: each kernel or copy is traced back through its launch to the
    CPU thread, and to the operators and ranges around the launch. Forward work is work launched in a range
    named as forward; without such ranges, work that a step launches before its backward pass ends, outside
    of autograd's nodes, the optimizer, data loading and zero_grad.

    Formula:
        forward_time = |U(kernels and copies launched by the forward pass)| in a step,
        mean over steps and ranks

    Caveats:
        The loss counts as forward unless a range marks it as backward. Input copies of the step are
        included unless ranges mark the forward pass. Gaps between kernels are excluded; so is, on a run
        without a device, the time that operators spend calling others. The forward pass that activation
        checkpointing repeats is part of `backward_time`.

    Reference:
        Launch correlation as in HolisticTraceAnalysis; ranges of torch.profiler, FSDP, DDP and
        torch.distributed.pipelining.
    """
    infers = facts.phase is not None and facts.phase.value == "inference"
    result = phase_time(phases, steps, FORWARD)
    if not infers:
        try:
            rows_of(phases, BACKWARD)
        except NotMeasurable as error:
            raise NotMeasurable(
                "no backward pass was recognised, so forward and backward work cannot be separated",
                fix=f"{RECORD_OPERATORS}; or write phase: inference into the workload card",
            ) from error
    return result
