"""The metric `ITL`: time between consecutive chunks of output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import gaps
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, times

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="s", better="lower", applies=(checks.inference,), aliases=("inter_token_latency",))
def ITL(  # noqa: N802 (the name it has everywhere)
    requests: pl.DataFrame, serving_statistics: pl.DataFrame
) -> Measurement:
    """Mean inter-token latency: the time between consecutive chunks of output, over all requests.

    Formula:
        ITL = mean over all gaps of all requests that succeeded

    Caveats:
        A mean over gaps, in which a long answer counts more than a short one; `TPOT` is the mean over
        requests. A chunk may hold several tokens, so gaps are between chunks. AIPerf calls its TPOT
        inter-token latency and these gaps inter-chunk latency. genai-bench and LLMPerf record no gaps;
        GuideLLM only states their mean.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Inter Chunk Latency.
    """
    benchmark = needed_benchmark(requests, serving_statistics)
    return times(benchmark, "itl", gaps(benchmark.ok), missing="the result records no times between tokens")
