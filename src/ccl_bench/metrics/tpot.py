"""How long a user waits for each further token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.forward_passes import DECODE
from ccl_bench.analysis.serving import benchmark_of, times_per_output_token
from ccl_bench.errors import NotMeasurable
from ccl_bench.frames import pl
from ccl_bench.metrics import Measurement, conditions, metric
from ccl_bench.metrics.shared.forward_pass_times import fallen_back, pass_times
from ccl_bench.metrics.shared.serving_details import BENCHMARK_IT, times

if TYPE_CHECKING:
    from ccl_bench.analysis.serving import Benchmark


@metric(unit="s", better="lower", applies=(conditions.inference,), aliases=("time_per_output_token",))
def TPOT(  # noqa: N802 (the name it has everywhere)
    requests: pl.DataFrame, serving_statistics: pl.DataFrame, forward_passes: pl.DataFrame
) -> Measurement:
    """Mean time per output token after the first, from the result of a serving benchmark.

    Formula:
        TPOT = mean over requests with two output tokens or more of
               (latency - time to first token) / (output tokens - 1)

    Caveats:
        A mean over requests, in which a short answer counts as much as a long one; `ITL` is the mean
        over gaps. vLLM and SGLang record no latency: it is the time to the first token and the gaps after
        it, which comes out up to a few microseconds a request longer than what they compute with.
        LLMPerf and GuideLLM call a time per output token what includes the first; it is not used.
        Where a run has traces and no serving benchmark, the value is `decode_step_time`, and the details
        say so; with speculative decoding, where a step gives several tokens, there is none.

    Reference:
        vLLM, `vllm bench serve`; AIPerf, Inter Token Latency.
    """
    found = benchmark_of(requests, serving_statistics)
    if found is None:
        return _from_traces(forward_passes)
    return _of_requests(found)


def _of_requests(found: Benchmark) -> Measurement:
    values = times_per_output_token(found.ok)
    one_token = found.ok.filter(pl.col("output_tokens") == 1).height
    measured = times(
        found,
        "tpot",
        values,
        missing="no request has two output tokens or more, its latency and its time to first token",
        requests_with_one_token=one_token,
    )
    speed = {"tokens_per_second_and_user": 1 / measured.value} if measured.value else {}
    return Measurement(measured.value, {**measured.details, **speed}, measured.window)


def _from_traces(forward_passes: pl.DataFrame) -> Measurement:
    try:
        found = pass_times(forward_passes, DECODE)
    except NotMeasurable as error:
        message = f"the run holds no result of a serving benchmark, and {error.message}"
        raise NotMeasurable(message, fix=BENCHMARK_IT) from error
    decodes = forward_passes.filter(pl.col("phase") == DECODE)
    if (decodes["generated"] > decodes["requests"]).any():
        why = "a decode step computes several tokens a request"
        raise NotMeasurable(f"the run holds no result of a serving benchmark, and {why}", fix=BENCHMARK_IT)
    return fallen_back("TPOT", "decode_step_time", found)
