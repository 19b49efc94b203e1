"""How long a user waits for the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.forward_passes import PREFILL
from ccl_bench.analysis.serving import benchmark_of, times_to_first_token
from ccl_bench.errors import NotMeasurable
from ccl_bench.metrics import Measurement, conditions, metric
from ccl_bench.metrics.shared.forward_pass_times import fallen_back, pass_times
from ccl_bench.metrics.shared.serving_details import BENCHMARK_IT, times

if TYPE_CHECKING:
    from ccl_bench.frames import pl


@metric(unit="s", better="lower", applies=(conditions.inference,), aliases=("time_to_first_token",))
def TTFT(  # noqa: N802 (the name it has everywhere)
    requests: pl.DataFrame, serving_statistics: pl.DataFrame, forward_passes: pl.DataFrame
) -> Measurement:
    """Mean time to first token, from the result of a serving benchmark.

    Formula:
        TTFT = mean over requests that succeeded of (first non-empty token - request sent)

    Caveats:
        Failed, cancelled and warm-up requests are counted apart and averaged nowhere. A client's TTFT
        contains queueing, tokenisation and the network. AIPerf's contains reasoning tokens. Where a run
        has traces and no serving benchmark, the value is `prefill_step_time`, and the details say so:
        that is the time of a forward pass, and no request was timed.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Time to First Token.
    """
    found = benchmark_of(requests, serving_statistics)
    if found is None:
        return _from_traces(forward_passes)
    missing = "no request has a time to its first token: the answers were not streamed"
    return times(found, "ttft", times_to_first_token(found.ok), missing=missing)


def _from_traces(forward_passes: pl.DataFrame) -> Measurement:
    try:
        found = pass_times(forward_passes, PREFILL)
    except NotMeasurable as error:
        message = f"the run holds no result of a serving benchmark, and {error.message}"
        raise NotMeasurable(message, fix=BENCHMARK_IT) from error
    return fallen_back("TTFT", "prefill_step_time", found)
