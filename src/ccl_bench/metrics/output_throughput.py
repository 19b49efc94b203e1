"""The metric `output_throughput`: output tokens per second of a serving benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import total
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, rate

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(
    unit="tokens/s",
    better="higher",
    applies=(checks.inference,),
    aliases=("output_token_throughput", "throughput_group_6"),
)
def output_throughput(requests: pl.DataFrame, serving_statistics: pl.DataFrame) -> Measurement:
    """Tokens generated in one second of a serving benchmark, over all requests that succeeded.

    Formula:
        output_throughput = sum of output tokens / length of the benchmark

    Caveats:
        Tools count tokens from the server's usage data or with their own tokeniser; the details state
        which. Tokens of failed or cancelled requests are excluded. Where tokens or length are not recorded,
        the rate that the tool states is used.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Output Token Throughput.
    """
    benchmark = needed_benchmark(requests, serving_statistics)
    return rate(benchmark, total(benchmark, "output_tokens"), "output tokens", "output_throughput")
