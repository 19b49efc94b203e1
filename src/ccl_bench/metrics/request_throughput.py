"""The metric `request_throughput`: requests per second of a serving benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import completed
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, rate

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="requests/s", better="higher", applies=(checks.inference,))
def request_throughput(requests: pl.DataFrame, serving_statistics: pl.DataFrame) -> Measurement:
    """Requests that succeeded in one second of a serving benchmark.

    Formula:
        request_throughput = requests that succeeded / length of the benchmark

    Caveats:
        Below saturation it is the rate at which the client sends, and shows little about the server. The
        length is what the tool recorded, else from the first request sent to the last token received.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Request Throughput.
    """
    benchmark = needed_benchmark(requests, serving_statistics)
    return rate(benchmark, completed(benchmark), "requests that succeeded", "request_throughput")
