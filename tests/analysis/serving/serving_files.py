"""Write small results of serving benchmarks, whose numbers can be worked out by hand, and measure them.

Three requests: 0.1 s to the first token and two gaps of 0.02 s; 0.3 s and one gap of 0.06 s; 0.2 s and one
token. So TTFT 0.2, TPOT 0.04, ITL 0.1/3, latencies 0.14, 0.36 and 0.2.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result
    from ccl_bench.trace.content import TraceContent

TTFTS = [0.1, 0.3, 0.2]
GAPS = [[0.02, 0.02], [0.06], []]
INPUTS = [10, 20, 30]
OUTPUTS = [3, 2, 1]
LATENCIES = [0.14, 0.36, 0.2]
DURATION = 2.0


def vllm(**changes: Any) -> dict[str, Any]:
    """Return a result of `vllm bench serve --save-detailed`; a change to None takes a key away."""
    whole = {
        "date": "20260101-000000",
        "backend": "vllm",
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": 3,
        "request_rate": "inf",
        "duration": DURATION,
        "completed": 3,
        "input_lens": INPUTS,
        "output_lens": OUTPUTS,
        "ttfts": TTFTS,
        "itls": GAPS,
        "errors": ["", "", ""],
        "mean_ttft_ms": 200.0,
        "mean_tpot_ms": 40.0,
        "p99_ttft_ms": 298.0,
    }
    return {key: value for key, value in (whole | changes).items() if value is not None}


def summary_only(**changes: Any) -> dict[str, Any]:
    """Return a vLLM result without the lists, as it is written by default."""
    lists = dict.fromkeys(("input_lens", "output_lens", "ttfts", "itls", "errors"))
    return vllm(**lists, total_input_tokens=60, total_output_tokens=6, **changes)


def sglang(**changes: Any) -> dict[str, Any]:
    """Return one line of SGLang's bench_serving with `--output-details`."""
    head = {"tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf")}
    body = vllm(
        model_id=None, tokenizer_id=None, num_prompts=None, date=None, backend=None, request_rate=None
    )
    return head | body | {"mean_e2e_latency_ms": 700 / 3} | changes


def genai_bench(unit: str = "s", **changes: Any) -> dict[str, Any]:
    """Return a result of genai-bench."""
    scale = {"s": 1, "ms": 1000}[unit]
    requests = [
        {
            "ttft": ttft * scale,
            "e2e_latency": latency * scale,
            "tpot": (latency - ttft) / max(tokens - 1, 1) * scale,
            "num_input_tokens": prompt,
            "num_output_tokens": tokens,
            "error_code": None,
            "error_message": None,
        }
        for ttft, latency, prompt, tokens in zip(TTFTS, LATENCIES, INPUTS, OUTPUTS, strict=True)
    ]
    whole = {"num_concurrency": 1, "iteration_type": "num_concurrency", "run_duration": DURATION}
    whole |= {"num_completed_requests": 3, "stats": {"ttft": {"mean": 0.2 * scale}}}
    return {
        "aggregated_metrics": whole,
        "individual_request_metrics": requests,
        "_time_unit": unit,
    } | changes


def llmperf(**changes: Any) -> list[dict[str, Any]]:
    """Return the individual responses of an LLMPerf run; changes are made to each."""
    return [
        {
            "error_code": None,
            "error_msg": "",
            "inter_token_latency_s": latency / tokens,
            "ttft_s": ttft,
            "end_to_end_latency_s": latency,
            "number_output_tokens": tokens,
            "number_input_tokens": prompt,
        }
        | changes
        for ttft, latency, prompt, tokens in zip(TTFTS, LATENCIES, INPUTS, OUTPUTS, strict=True)
    ]


def aiperf(names: str = "new", **changes: Any) -> list[dict[str, Any]]:
    """Return the records of an AIPerf run, of a version with `new` or `old` names; changes to each."""
    phase, ttft_name = {"new": ("benchmark_phase", "time_to_first_token"), "old": ("credit_phase", "ttft")}[
        names
    ]
    found = []
    for index, ttft in enumerate(TTFTS):
        start = 1_000_000_000 * (index // 2)
        times = {ttft_name: ttft, "request_latency": LATENCIES[index], "inter_chunk_latency": GAPS[index]}
        metrics = {key: {"value": _milliseconds(value), "unit": "ms"} for key, value in times.items()}
        metrics["input_sequence_length"] = {"value": INPUTS[index], "unit": "tokens"}
        metrics["output_sequence_length"] = {"value": OUTPUTS[index], "unit": "tokens"}
        end = start + round(LATENCIES[index] * 1e9)
        metadata = {"x_request_id": f"r{index}", "request_start_ns": start, "request_end_ns": end}
        found.append(
            {"metadata": metadata | {phase: "profiling"}, "metrics": metrics, "error": None} | changes
        )
    return found


def inference_perf(layout: str = "new", **changes: Any) -> list[dict[str, Any]]:
    """Return `per_request_lifecycle_metrics.json` of inference-perf; sizes are flat in the `old` layout."""
    found = []
    for index, (ttft, gaps) in enumerate(zip(TTFTS, GAPS, strict=True)):
        start = 100.0 + index
        times = [start + ttft + sum(gaps[:place]) for place in range(len(gaps) + 1)]
        answer = {"output_tokens": OUTPUTS[index], "output_token_times": times}
        infos = {
            "old": {"input_tokens": INPUTS[index], **answer},
            "new": {
                "request_metrics": {"text": {"input_tokens": INPUTS[index]}},
                "response_metrics": answer,
            },
        }
        entry = {"start_time": start, "end_time": start + LATENCIES[index], "request": "{}", "response": ""}
        found.append(entry | {"info": infos[layout], "error": None} | changes)
    return found


def inference_perf_summary(load: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a summary of inference-perf; `load` is what a stage says of its load, in addition."""
    latency = {
        "request_latency": {"mean": 0.7 / 3, "median": 0.2},
        "time_to_first_token": {"mean": 0.2, "p99": 0.298},
        "time_per_output_token": {"mean": 0.04},
        "inter_token_latency": {"mean": 0.1 / 3},
    }
    throughput = {"requests_per_sec": 1.5, "output_tokens_per_sec": 3.0, "total_tokens_per_sec": 33.0}
    successes = {"count": 3, "latency": latency, "throughput": throughput, "output_len": {"mean": 2.0}}
    whole = {
        "load_summary": {"count": 3, "schedule_delay": {"mean": 0.0}} | (load or {}),
        "successes": successes,
        "failures": {"count": 0, "request_latency": None},
    }
    return whole | changes


def guidellm(layout: str = "new", rate: float = 1.5) -> dict[str, Any]:
    """Return one of the benchmarks of a GuideLLM report, of a version with `new` or `old` names."""
    listed: list[dict[str, Any]] = []
    for index, ttft in enumerate(TTFTS):
        start, latency, tokens = 1000.0 + index, LATENCIES[index], OUTPUTS[index]
        listed.append(
            {
                "new": {
                    "info": {"timings": {"request_start": start, "request_end": start + latency}},
                    "request_latency": latency,
                    "time_to_first_token_ms": ttft * 1000,
                },
                "old": {
                    "start_time": start,
                    "end_time": start + latency,
                    "first_token_time": start + ttft,
                },
            }[layout]
            | {"request_id": f"r{index}", "prompt_tokens": INPUTS[index], "output_tokens": tokens}
        )
    means = {
        "time_to_first_token_ms": 200.0,
        "request_latency": 0.7 / 3,
        "inter_token_latency_ms": 100 / 3,
        "time_per_output_token_ms": 5.0,
        "requests_per_second": 9.0,
    }
    metrics = {name: {"successful": {"mean": mean, "count": 3}} for name, mean in means.items()}
    metrics["output_token_count"] = {"successful": {"total_sum": 6.0}}
    metrics["prompt_token_count"] = {"successful": {"total_sum": 60.0}}
    strategy = {"strategy": {"type_": "constant", "rate": rate}}
    about: dict[str, Any] = {"new": {"config": strategy}, "old": {"args": strategy}}[layout]
    window = {"start_time": 1000.0, "end_time": 1000.0 + DURATION}
    lists = {"successful": listed, "errored": [], "incomplete": []}
    return {"type_": "generative_benchmark", **about, "metrics": metrics, "requests": lists, **window}


def guidellm_report(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    """Return `benchmarks.json` of GuideLLM."""
    return {"metadata": {"guidellm_version": "0.6.0"}, "benchmarks": [*benchmarks]}


def _milliseconds(value: Any) -> Any:
    return [_milliseconds(each) for each in value] if isinstance(value, list) else value * 1000


def as_lines(values: list[Any]) -> str:
    """Return JSON values one a line."""
    return "".join(json.dumps(value) + "\n" for value in values)


def text_of(value: Any) -> str:
    """Return a value as JSON; a text stands as it is."""
    return value if isinstance(value, str) else json.dumps(value)


def read(value: Any, file: str = "result.json") -> TraceContent:
    """Return what the format that recognises `value` makes of it."""
    raw = text_of(value).encode()
    form = formats.recognised(raw[: 256 << 10])
    assert form is not None, "no format recognises it"
    return form.read(io.BytesIO(raw), file)


def measured(folder: Path, *names: str, **files: Any) -> list[Result]:
    """Write files into a run, `__` in a name standing for the dot before the suffix, and measure it."""
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(text_of(value), encoding="utf-8")
    return evaluate(open_run(folder), names)


def codes(content: TraceContent) -> list[str]:
    """Return the codes of what was found wrong."""
    return [finding.code for finding in content.findings]
