"""Results of inference benchmarks, recognised by content: vLLM, SGLang, AIPerf, GuideLLM and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, register
from ccl_bench.trace.formats.serving import recognition

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent


def _vllm(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.vllm import read_vllm

    return read_vllm(stream, file)


def _vllm_latency(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.vllm import read_vllm_latency

    return read_vllm_latency(stream, file)


def _vllm_throughput(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.vllm import read_vllm_throughput

    return read_vllm_throughput(stream, file)


def _sglang(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.vllm import read_sglang

    return read_sglang(stream, file)


def _genai_bench(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.genai_bench import read_genai_bench

    return read_genai_bench(stream, file)


def _aiperf(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.aiperf import read_aiperf

    return read_aiperf(stream, file)


def _llmperf(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.llmperf import read_llmperf

    return read_llmperf(stream, file)


def _inference_perf(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.inference_perf import read_inference_perf

    return read_inference_perf(stream, file)


def _guidellm(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.serving.guidellm import read_guidellm

    return read_guidellm(stream, file)


_READERS: dict[str, tuple[Callable[[bytes], bool], Callable[[BinaryIO, str], TraceContent]]] = {
    "vllm": (recognition.is_vllm, _vllm),
    "vllm_latency": (recognition.is_vllm_latency, _vllm_latency),
    "vllm_throughput": (recognition.is_vllm_throughput, _vllm_throughput),
    "sglang": (recognition.is_sglang, _sglang),
    "genai_bench": (recognition.is_genai_bench, _genai_bench),
    "aiperf": (recognition.is_aiperf, _aiperf),
    "llmperf": (recognition.is_llmperf, _llmperf),
    "inference_perf": (recognition.is_inference_perf, _inference_perf),
    "guidellm": (recognition.is_guidellm, _guidellm),
}

SERVING = tuple(
    register(
        Format(
            name=name,
            profile="serving",
            revision=3,
            tables=frozenset({"requests", "serving_statistics"}),
            recognises=recognises,
            read=read,
            suffixes=(".json", ".json.gz", ".jsonl"),
            of_rank=False,
        )
    )
    for name, (recognises, read) in _READERS.items()
)
