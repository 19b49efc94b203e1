"""The metric `total_token_throughput`: tokens of prompts and answers per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import all_tokens, total
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, rate

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="tokens/s", better="higher", applies=(checks.inference,))
def total_token_throughput(requests: pl.DataFrame, serving_statistics: pl.DataFrame) -> Measurement:
    """Tokens of prompts and answers in one second of a serving benchmark.

    Formula:
        total_token_throughput = (sum of input tokens + sum of output tokens) / length of the benchmark

    Caveats:
        The tokens of a prompt count even if a prefix cache avoided their computation. Failed or cancelled
        requests are excluded.

    Reference:
        vLLM, `vllm bench serve`.
    """
    benchmark = needed_benchmark(requests, serving_statistics)
    input_tokens, output_tokens = total(benchmark, "input_tokens"), total(benchmark, "output_tokens")
    return rate(
        benchmark,
        all_tokens(benchmark),
        "tokens",
        "total_token_throughput",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )
