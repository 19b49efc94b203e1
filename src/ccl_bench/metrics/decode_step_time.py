"""The metric `decode_step_time`: time of a decode pass of an inference server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.forward_passes import DECODE
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import pass_times

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.inference,), revision=3)
def decode_step_time(forward_passes: pl.DataFrame) -> Measurement:
    """Mean time of a forward pass that only decodes, from the ranges in traces of vLLM or SGLang.

    Formula:
        decode_step_time = mean over ranks of mean over decode passes of (end - start)

    Caveats:
        Passes that mix prefill and decode are counted separately and not timed. With speculative decoding a
        pass gives several tokens: it is the one of the target model that verifies, without the passes of the
        draft model, whose mean time is `draft_pass_s` in the details if they have ranges. Replays of a CUDA
        graph by the draft model have none. In the older ranges of vLLM (`execute_new_..._cached_...`), the
        further chunks of a long prompt look like decoding.
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
    return pass_times(forward_passes, DECODE)
