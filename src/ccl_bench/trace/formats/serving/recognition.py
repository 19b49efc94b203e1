"""Recognition of serving benchmarks by the first bytes of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import all_of, any_of, begins, holds, none_of

if TYPE_CHECKING:
    from ccl_bench.trace.formats import Recogniser


def _names(*keys: bytes) -> Recogniser:
    """Recognise the start of JSON that names every one of `keys`."""
    quoted_keys = (b'"%s"' % key for key in keys)
    return all_of(
        holds(*quoted_keys), begins(rb"[\xef\xbb\xbf \t\r\n]*[{\[]"), none_of(holds(b'"traceEvents"'))
    )


is_vllm = _names(b"model_id", b"num_prompts", b"duration", b"completed")
"""A result of vLLM's `benchmark_serving` or `vllm bench serve`."""

is_vllm_latency = _names(b"avg_latency", b"latencies", b"percentiles")
"""A result of `vllm bench latency`."""

is_vllm_throughput = _names(b"elapsed_time", b"num_requests", b"total_num_tokens", b"tokens_per_second")
"""A result of `vllm bench throughput`."""

is_sglang = all_of(
    _names(b"backend", b"dataset_name", b"duration", b"completed", b"mean_ttft_ms"), none_of(is_vllm)
)
"""A result of SGLang's `bench_serving`."""

is_inferencex = _names(b"hw", b"conc", b"framework", b"precision", b"tput_per_gpu")
"""An aggregate of InferenceX, formerly InferenceMAX, or a list of them."""

is_genai_bench = all_of(
    _names(b"aggregated_metrics", b"num_concurrency"),
    any_of(_names(b"individual_request_metrics"), _names(b"iteration_type")),
)
"""One scenario of genai-bench."""

_RECORD = all_of(_names(b"metadata", b"x_request_id", b"metrics"), none_of(_names(b"responses")))
"""One request. The raw export has the same metadata, and the responses instead of metrics."""


def is_aiperf_records(head: bytes) -> bool:
    """Whether it is AIPerf's `profile_export.jsonl`: one request a line."""
    return _RECORD(next((line for line in head.splitlines() if line.strip()), b""))


is_aiperf_summary = all_of(
    any_of(_names(b"request_latency", b"request_count"), _names(b"error_request_count")),
    _names(b"unit", b"avg"),
)
"""AIPerf's `profile_export_aiperf.json`; without successes it counts errors alone."""

is_aiperf = any_of(all_of(holds(b'"x_request_id"'), is_aiperf_records), is_aiperf_summary)
"""Whatever AIPerf writes."""

is_llmperf_summary = _names(b"results_num_completed_requests", b"results_ttft_s_mean")
"""The summary of an LLMPerf run."""

is_llmperf = any_of(_names(b"inter_token_latency_s", b"end_to_end_latency_s", b"ttft_s"), is_llmperf_summary)
"""Whatever LLMPerf writes: one request after the other, or the summary."""

is_inference_perf = any_of(
    all_of(
        _names(b"load_summary", b"successes", b"failures", b"throughput", b"request_latency"),
        none_of(_names(b"queue_len")),
    ),
    all_of(
        begins(rb'[\xef\xbb\xbf \t\r\n]*\[\s*\{\s*"start_time"\s*:\s*[^,"]+,\s*"end_time"\s*:\s*[^,"]+,\s*"'),
        any_of(_names(b"info"), _names(b"request"), _names(b"computed_metrics")),
    ),
)
"""Whatever inference-perf writes of requests; what it asks Prometheus is the server's own and has a queue."""

is_guidellm = all_of(
    _names(b"benchmarks"),
    any_of(
        _names(b"generative_benchmark"),
        _names(b"guidellm_version"),
        _names(b"metrics", b"request_totals"),
        _names(b"metrics", b"requests_per_second"),
        _names(b"metrics", b"time_to_first_token_ms"),
    ),
)
"""GuideLLM's `benchmarks.json`."""
