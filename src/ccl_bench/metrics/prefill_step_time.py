"""The metric `prefill_step_time`: time of a prefill pass of an inference server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.forward_passes import PREFILL
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import pass_times

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.inference,), revision=3)
def prefill_step_time(forward_passes: pl.DataFrame) -> Measurement:
    """Mean time of a forward pass that only prefills, from the ranges in traces of vLLM or SGLang.

    Formula:
        prefill_step_time = mean over ranks of mean over prefill passes of (end - start)

    Caveats:
        Passes that mix prefill and decode are counted separately and not timed. A prompt that is split into
        chunks has several passes, and in the older ranges of vLLM (`execute_new_..._cached_...`) those after
        the first look like decoding. Passes in which the draft model of speculative decoding prefills do not
        count.
        With a device, start and end are those of the first and last work launched inside the range, else
        those of the range on the device; the range on the CPU, which may be longer or shorter, counts only if
        the CPU is the device. A pass begins when kernels that were launched before it have ended. A range
        without traceable work has no time. The profiler slows a server down. It is the time of a step, not of
        a request: queueing, tokenisation and the network are missing.

    Reference:
        vLLM, `execute_context_<requests>(<tokens>)_generation_<requests>(<tokens>)` and
        `execute_new_<requests>_cached_<requests>`; SGLang, `step[<mode> bs=<requests>]` with the modes of
        `ForwardMode`.
    """
    return pass_times(forward_passes, PREFILL)
