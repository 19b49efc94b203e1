"""Results of inference benchmarks, recognised by content: vLLM, SGLang, AIPerf, GuideLLM and others."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, cast

from ccl_bench.trace.formats import Format, register
from ccl_bench.trace.formats.serving import recognition

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats import Recogniser

_TOOLS: dict[str, tuple[Recogniser, str]] = {
    "vllm": (recognition.is_vllm, "vllm"),
    "vllm_latency": (recognition.is_vllm_latency, "vllm"),
    "vllm_throughput": (recognition.is_vllm_throughput, "vllm"),
    "sglang": (recognition.is_sglang, "vllm"),
    "genai_bench": (recognition.is_genai_bench, "genai_bench"),
    "aiperf": (recognition.is_aiperf, "aiperf"),
    "llmperf": (recognition.is_llmperf, "llmperf"),
    "inference_perf": (recognition.is_inference_perf, "inference_perf"),
    "guidellm": (recognition.is_guidellm, "guidellm"),
    "inferencex": (recognition.is_inferencex, "inferencex"),
}
"""Tool → what recognises its results, and the module that has `read_TOOL`."""


def _read(module: str, tool: str, stream: BinaryIO, file: str) -> TraceContent:
    """Read a result; the modules import polars and numpy, which listing formats does without."""
    reader = getattr(importlib.import_module(f"{__name__}.{module}"), f"read_{tool}")
    return cast("TraceContent", reader(stream, file))


SERVING = tuple(
    register(
        Format(
            name=tool,
            profile="serving",
            revision=4,
            tables=frozenset({"requests", "serving_statistics", "serving_settings"}),
            recognises=recognises,
            read=partial(_read, module, tool),
            suffixes=(".json", ".json.gz", ".jsonl"),
            of_rank=False,
        )
    )
    for tool, (recognises, module) in _TOOLS.items()
)
