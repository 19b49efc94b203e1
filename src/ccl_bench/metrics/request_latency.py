"""The metric `request_latency`: end-to-end latency of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import latencies
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, times

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.inference,), aliases=("e2e_latency",))
def request_latency(requests: pl.DataFrame, serving_statistics: pl.DataFrame) -> Measurement:
    """Mean end-to-end latency of a request, from the result of a serving benchmark.

    Formula:
        request_latency = mean over requests that succeeded of (last token - request sent)

    Caveats:
        It grows with the length of the answers, so compare it only between equal loads. vLLM and
        SGLang record no latency: it is the time to the first token and the gaps after it.

    Reference:
        vLLM, E2EL; AIPerf, Request Latency.
    """
    benchmark = needed_benchmark(requests, serving_statistics)
    return times(benchmark, "latency", latencies(benchmark.ok), missing="no request has a latency")
