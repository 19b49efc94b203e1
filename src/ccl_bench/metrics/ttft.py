"""The metric `TTFT`: time to first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import times_to_first_token
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, times

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.inference,), aliases=("time_to_first_token",), revision=2)
def TTFT(  # noqa: N802 (the name it has everywhere)
    requests: pl.DataFrame, serving_statistics: pl.DataFrame
) -> Measurement:
    """Mean time to first token, from the result of a serving benchmark.

    Formula:
        TTFT = mean over requests that succeeded of (first non-empty token - request sent)

    Caveats:
        Failed, cancelled and warm-up requests are counted separately and excluded from the mean. A client's
        TTFT includes queueing, tokenisation and the network. AIPerf's includes reasoning tokens. Answers
        that were not streamed come in one piece and have no TTFT. Traces alone give `prefill_step_time`,
        the time of a forward pass, which does not replace this.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Time to First Token.
    """
    benchmark = needed_benchmark(requests, serving_statistics, instead="prefill_step_time")
    missing = "no request has a time to its first token: the answers were not streamed"
    return times(benchmark, "ttft", times_to_first_token(benchmark.ok), missing=missing)
