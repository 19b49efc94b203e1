"""Results of LLMPerf: a list with one object for each request, and a summary in another file.

Its inter-token latency counts the time to the first token as one of the gaps and divides by all
tokens. It is kept as the tool's own and is not used as a time per token.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.trace import memory
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    finite,
    one_value,
    read_whole,
    seconds,
    text,
    tokens,
)
from ccl_bench.trace.formats.serving.requests import (
    Request,
    RequestRows,
    StoredStatistic,
    settings_of,
    statistic,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_QUANTITIES = {"ttft": "ttft", "inter_token_latency": "own_tpot", "end_to_end_latency": "latency"}
_STATISTIC = re.compile(r"results_(ttft|inter_token_latency|end_to_end_latency)_s_(?:quantiles_)?(\w+)")
_SETTINGS = {
    "model": "model",
    "framework": "engine",
    "mean_input_tokens": "input_tokens",
    "mean_output_tokens": "output_tokens",
}
_COMPLETED = "results_num_completed_requests"
_A_MINUTE = "results_num_completed_requests_per_min"


def read_llmperf(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of either file of an LLMPerf run."""
    raw, damage = read_whole(stream)
    memory.hold_json(raw)
    rows = RequestRows("llmperf", file)
    value = one_value(raw, damage, file)
    if isinstance(value, dict):
        rows.stored += _stored(value)
        rows.settings += settings_of(value, _SETTINGS, 0)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            rows.add(f"request {index}", partial(_request, entry, index))
    else:
        raise InputError("is neither a list of requests nor a summary", where=file)
    return rows.content()


def _stored(summary: dict[str, Any]) -> Iterator[StoredStatistic]:
    for key, value in summary.items():
        match, number = _STATISTIC.fullmatch(key), finite(value)
        if match and number is not None:
            yield StoredStatistic(0, _QUANTITIES[match[1]], statistic(match[2]), number)
    completed, per_minute = finite(summary.get(_COMPLETED)), finite(summary.get(_A_MINUTE))
    if completed is None:
        return
    yield StoredStatistic(0, "completed", "total", completed)
    counts = {"results_number_errors": "failed", "num_concurrent_requests": "concurrency"}
    yield from totals(summary, counts, 0)
    if per_minute:
        yield StoredStatistic(0, "duration", "total", completed / per_minute * 60)
    for name in ("input_tokens", "output_tokens"):
        mean = finite(summary.get(f"results_number_{name}_mean"))
        if mean is not None:
            yield StoredStatistic(0, name, "total", float(round(mean * completed)))


def _request(entry: object, index: int) -> Request:
    if not isinstance(entry, dict):
        raise Impossible("it is not an object")
    if entry.get("error_code") is not None:
        error = text(entry.get("error_msg")) or f"error {text(entry['error_code'])}"
        return Request(0, str(index), "failed", error=error)
    return Request(
        0,
        str(index),
        ttft_s=seconds(entry.get("ttft_s"), "ttft_s") or None,  # 0 if no token came
        latency_s=seconds(entry.get("end_to_end_latency_s"), "end_to_end_latency_s"),
        own_tpot_s=seconds(entry.get("inter_token_latency_s"), "inter_token_latency_s"),
        input_tokens=tokens(entry.get("number_input_tokens"), "number_input_tokens"),
        output_tokens=tokens(entry.get("number_output_tokens"), "number_output_tokens"),
    )
