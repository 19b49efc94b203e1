"""Metrics of a serving benchmark by json and lists, from each tool's raw requests."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Request:
    """One request that succeeded, seconds and tokens; None where the tool records none."""

    ttft: float
    latency: float
    read: int
    written: int
    gaps: list[float] | None = None


def mean(values: list[float]) -> float | None:
    """Return the mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def metrics_of(folder: Path) -> dict[str, float | None]:
    """Return metric -> value for the result that a folder holds."""
    requests, duration = READERS[folder.name](folder)
    gaps = [gap for request in requests for gap in request.gaps or []]
    tpot = [(r.latency - r.ttft) / (r.written - 1) for r in requests if r.written > 1]
    read, written = sum(r.read for r in requests), sum(r.written for r in requests)
    return {
        "TTFT": mean([r.ttft for r in requests]),
        "TPOT": mean(tpot),
        "ITL": mean(gaps),
        "request_latency": mean([r.latency for r in requests]),
        "request_throughput": len(requests) / duration,
        "output_throughput": written / duration,
        "total_token_throughput": (read + written) / duration,
    }


def _document(folder: Path, pattern: str) -> Any:
    (path,) = folder.glob(pattern)
    return json.loads(path.read_text(encoding="utf-8"))


def _vllm(folder: Path) -> tuple[list[Request], float]:
    result = _document(folder, "*.json")
    columns = zip(
        *(result[name] for name in ("ttfts", "itls", "input_lens", "output_lens", "errors")), strict=True
    )
    requests = [
        Request(ttft, ttft + math.fsum(gaps), read, written, gaps)
        for ttft, gaps, read, written, error in columns
        if not error
    ]
    return requests, result["duration"]


def _genai_bench(folder: Path) -> tuple[list[Request], float]:
    result = _document(folder, "*.json")
    requests = [
        Request(r["ttft"], r["e2e_latency"], r["num_input_tokens"], r["num_output_tokens"])
        for r in result["individual_request_metrics"]
        if r["error_code"] is None
    ]
    return requests, result["aggregated_metrics"]["run_duration"]


def _aiperf(folder: Path) -> tuple[list[Request], float]:
    """Return the requests without an error, and the time from the first request to the last answer."""
    lines = (folder / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if not record.get("error")]
    requests = []
    for record in records:
        value = {name: metric["value"] for name, metric in record["metrics"].items()}
        gaps = [gap / 1e3 for gap in value["inter_chunk_latency"]]
        lengths = value["input_sequence_length"], value["output_sequence_length"]
        requests.append(Request(value["ttft"] / 1e3, value["request_latency"] / 1e3, *lengths, gaps))
    first = min(record["metrics"]["min_request_timestamp"]["value"] for record in records)
    last = max(record["metrics"]["max_response_timestamp"]["value"] for record in records)
    return requests, (last - first) / 1e9


def _llmperf(folder: Path) -> tuple[list[Request], float]:
    """Return the requests without an error; the length of the run follows from the requests per minute."""
    individual, summary = (_document(folder, f"{name}*.json") for name in ("individual", "summary"))
    requests = [
        Request(r["ttft_s"], r["end_to_end_latency_s"], r["number_input_tokens"], r["number_output_tokens"])
        for r in individual
        if r["error_code"] is None
    ]
    completed = summary["results_num_completed_requests"]
    return requests, 60 * completed / summary["results_num_completed_requests_per_min"]


READERS = {
    "vllm-tp8": _vllm,
    "vllm-tp4pp2": _vllm,
    "genai-bench": _genai_bench,
    "aiperf": _aiperf,
    "llmperf": _llmperf,
}
