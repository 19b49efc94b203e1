"""The metric `decode_step_time`: time of a decode pass of an inference server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.forward_passes import DECODE
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import pass_times

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.inference,), revision=2)
def decode_step_time(forward_passes: pl.DataFrame) -> Measurement:
    """Mean time of a forward pass that only decodes, from the ranges in traces of vLLM or SGLang.

    Formula:
        decode_step_time = mean over ranks of mean over decode passes of (end - start)

    Caveats:
        Passes that mix prefill and decode are counted separately and not timed. With speculative decoding a
        pass gives several tokens. The device time is that of the matching range on the device, else from
        the first to the last work launched inside the range; a range without traceable work has no time.
        The profiler slows a server down. It is the time of a step, not of a request: queueing, tokenisation
        and the network are missing.

    Reference:
        vLLM, `execute_context_<requests>(<tokens>)_generation_<requests>(<tokens>)`; SGLang,
        `step[EXTEND ...]` and `step[DECODE ...]`.
    """
    return pass_times(forward_passes, DECODE)
