"""The metric `TPOT`: time per output token after the first."""

from __future__ import annotations

from ccl_bench.analysis.serving.benchmark import times_per_output_token
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import needed_benchmark, times


@metric(unit="s", better="lower", applies=(checks.inference,), aliases=("time_per_output_token",), revision=2)
def TPOT(  # noqa: N802 (the name it has everywhere)
    requests: pl.DataFrame, serving_statistics: pl.DataFrame
) -> Measurement:
    """Mean time per output token after the first, from the result of a serving benchmark.

    Formula:
        TPOT = mean over requests with two output tokens or more of
               (latency - time to first token) / (output tokens - 1)

    Caveats:
        It is a mean over requests: a short answer counts as much as a long one; `ITL` is the mean over
        gaps. vLLM and SGLang record no latency: it is the time to the first token plus the gaps after it,
        up to a few microseconds per request longer than in their own computation. The time per output token
        of LLMPerf and GuideLLM includes the first token; it is not used. An answer whose tokens all came
        with the first one shows no time between tokens and is left out. Traces alone give
        `decode_step_time`, the time of a forward pass, which does not replace this.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Inter Token Latency.
    """
    benchmark = needed_benchmark(requests, serving_statistics, instead="decode_step_time")
    values = times_per_output_token(benchmark.ok)
    one_token = benchmark.ok.filter(pl.col("output_tokens") == 1).height
    at_once = benchmark.ok.filter(
        (pl.col("output_tokens") > 1) & (pl.col("latency_s") <= pl.col("ttft_s"))
    ).height
    measured = times(
        benchmark,
        "tpot",
        values,
        missing="no request has at least two output tokens, a latency and a time to first token",
        requests_with_one_token=one_token,
        requests_in_one_piece=at_once,
    )
    speed = {"tokens_per_second_and_user": 1 / measured.value} if measured.value else {}
    return Measurement(measured.value, {**measured.details, **speed}, measured.window)
