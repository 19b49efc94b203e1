"""Which serving benchmark wrote a file, from its first bytes."""

from __future__ import annotations

_CHROME_TRACE = b'"traceEvents"'


def _holds(head: bytes, *keys: bytes) -> bool:
    """Whether `head` is the start of JSON and names every one of `keys`."""
    starts_as_json = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}
    named = all(b'"%s"' % key in head for key in keys)
    return starts_as_json and named and _CHROME_TRACE not in head


def is_vllm(head: bytes) -> bool:
    """Whether it is a result of vLLM's `benchmark_serving` or `vllm bench serve`."""
    return _holds(head, b"model_id", b"num_prompts", b"duration", b"completed")


def is_vllm_latency(head: bytes) -> bool:
    """Whether it is a result of `vllm bench latency`."""
    return _holds(head, b"avg_latency", b"latencies", b"percentiles")


def is_vllm_throughput(head: bytes) -> bool:
    """Whether it is a result of `vllm bench throughput`."""
    return _holds(head, b"elapsed_time", b"num_requests", b"total_num_tokens", b"tokens_per_second")


def is_sglang(head: bytes) -> bool:
    """Whether it is a result of SGLang's `bench_serving`."""
    named = _holds(head, b"backend", b"dataset_name", b"duration", b"completed", b"mean_ttft_ms")
    return named and not is_vllm(head)


def is_genai_bench(head: bytes) -> bool:
    """Whether it is one scenario of genai-bench."""
    return _holds(head, b"aggregated_metrics", b"num_concurrency") and (
        _holds(head, b"individual_request_metrics") or _holds(head, b"iteration_type")
    )


def is_aiperf_records(head: bytes) -> bool:
    """Whether it is AIPerf's `profile_export.jsonl`: one request a line.

    The raw export has the same metadata and the responses instead of metrics.
    """
    first = next((line for line in head.splitlines() if line.strip()), b"")
    return _holds(first, b"metadata", b"x_request_id", b"metrics") and not _holds(first, b"responses")


def is_aiperf_summary(head: bytes) -> bool:
    """Whether it is AIPerf's `profile_export_aiperf.json`; without successes it counts errors alone."""
    counted = _holds(head, b"request_latency", b"request_count") or _holds(head, b"error_request_count")
    return counted and _holds(head, b"unit", b"avg")


def is_aiperf(head: bytes) -> bool:
    """Whether AIPerf wrote it."""
    return is_aiperf_records(head) or is_aiperf_summary(head)


def is_llmperf_summary(head: bytes) -> bool:
    """Whether it is the summary of an LLMPerf run."""
    return _holds(head, b"results_num_completed_requests", b"results_ttft_s_mean")


def is_llmperf(head: bytes) -> bool:
    """Whether LLMPerf wrote it."""
    individual = _holds(head, b"inter_token_latency_s", b"end_to_end_latency_s", b"ttft_s")
    return individual or is_llmperf_summary(head)
