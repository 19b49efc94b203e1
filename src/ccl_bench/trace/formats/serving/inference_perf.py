"""Results of inference-perf: requests in one file, and a summary of each load stage and of all in others.

Its requests carry no stage, so that the list covers all stages, as `summary_lifecycle_metrics.json` does.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ccl_bench.base.findings import Finding
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    as_instant_ns,
    finite,
    first_of,
    mapping,
    read_objects,
    seconds,
    text,
    times,
    tokens,
)
from ccl_bench.trace.formats.serving.requests import (
    Request,
    RequestRows,
    StoredStatistic,
    statistics_of,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats.serving.json_values import Floats

_QUANTITIES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_latency": "latency",
    "normalized_time_per_output_token": "own_tpot",
}
_RATES = {
    "requests_per_sec": "request_throughput",
    "output_tokens_per_sec": "output_throughput",
    "total_tokens_per_sec": "total_token_throughput",
}
_LOAD = {"requested_rate": "request_rate", "concurrency": "concurrency"}

_TOLERANCE = 0.25
"""Share by which a time per output token may differ from the one that the means of its parts give."""


def read_inference_perf(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a summary or of the list of requests."""
    rows = RequestRows("inference_perf", file)
    for index, document in enumerate(read_objects(stream, file)):
        if "successes" in document:
            rows.stored += _stored(document, rows)
        else:
            rows.add(f"request {index}", partial(_request, document, index))
    return rows.content()


def _stored(document: Mapping[str, Any], rows: RequestRows) -> Iterator[StoredStatistic]:
    successes = mapping(document, "successes")
    latency, throughput = mapping(successes, "latency"), mapping(successes, "throughput")
    for name, quantity in _QUANTITIES.items():
        summary = mapping(latency, name)
        if quantity == "tpot" and (finding := _miscounted(successes, latency, rows.file)):
            rows.findings.append(finding)
            continue
        yield from statistics_of(summary, quantity, 0)
    yield from totals(successes, {"count": "completed"}, 0)
    yield from totals(mapping(document, "failures"), {"count": "failed"}, 0)
    yield from totals(throughput, _RATES, 0)
    yield from totals(mapping(document, "load_summary"), _LOAD, 0)
    yield from totals(mapping(successes, "goodput_metrics"), {"request_goodput": "goodput"}, 0)
    completed, rate = finite(successes.get("count")), finite(throughput.get("requests_per_sec"))
    duration = finite(document.get("benchmark_time_seconds"))
    if not duration and completed and rate:
        duration = completed / rate
    if duration:
        yield StoredStatistic(0, "duration", "total", duration)


def _miscounted(successes: Mapping[str, Any], latency: Mapping[str, Any], file: str) -> Finding | None:
    """Return the finding that a time per output token divides by pieces of answers, as in older versions."""
    whole, first, each = (
        finite(mapping(latency, name).get("mean"))
        for name in ("request_latency", "time_to_first_token", "time_per_output_token")
    )
    count = finite(mapping(successes, "output_len").get("mean"))
    if whole is None or first is None or each is None or count is None or count <= 1:
        return None
    expected = (whole - first) / (count - 1)
    if abs(each - expected) <= _TOLERANCE * max(each, expected):
        return None
    message = (
        f"the mean tpot is stated as {each:.6g} s, but latency, ttft and tokens give {expected:.6g} s: "
        "answers came in more or fewer pieces than tokens, and it is not used"
    )
    return Finding("statistics-disagree", "warning", message, file, touches=("requests",))


def _request(entry: Mapping[str, Any], index: int) -> Request:
    stage = entry.get("stage_id")
    benchmark = stage if type(stage) is int and 0 <= stage < 1 << 31 else 0
    start, end = finite(entry.get("start_time")), finite(entry.get("end_time"))
    if error := entry.get("error"):
        details = error if isinstance(error, dict) else {"error_msg": error}
        why = text(details.get("error_msg") or details.get("error_type"))
        return Request(benchmark, str(index), "failed", as_instant_ns(start), error=why)
    if start is None or end is None:
        raise Impossible("it has no start or no end")
    info, computed = mapping(entry, "info"), mapping(entry, "computed_metrics")
    response = mapping(info, "response_metrics") or info
    ttft, gaps = _token_times(response.get("output_token_times"), start)
    if gaps is None and (latencies := computed.get("inter_token_latencies")):
        gaps = times(latencies, "inter_token_latencies")
    own_tpot = computed.get("normalized_time_per_output_token")
    # Of the prompt and of the answer: what the client counted, else what the server reports.
    of_prompt = mapping(mapping(info, "request_metrics"), "text").get("input_tokens")
    prompt_tokens = first_of(of_prompt, info.get("input_tokens"), computed.get("input_tokens"))
    reported = mapping(response, "server_usage").get("completion_tokens")
    answer_tokens = response.get("output_tokens") or first_of(reported, computed.get("output_tokens"))
    return Request(
        benchmark,
        str(index),
        start_ns=as_instant_ns(start),
        end_ns=as_instant_ns(end),
        ttft_s=seconds(first_of(ttft, computed.get("time_to_first_token")), "the time to the first token"),
        latency_s=seconds(end - start, "end_time - start_time"),
        own_tpot_s=seconds(own_tpot, "normalized_time_per_output_token"),
        input_tokens=tokens(prompt_tokens, "input_tokens"),
        output_tokens=tokens(answer_tokens, "output_tokens"),
        gaps_s=gaps,
    )


def _token_times(times: object, start: float) -> tuple[float | None, Floats | list[float] | None]:
    """Return the time to the first token and the gaps after it, s; None of an answer in one piece."""
    if not times:
        return None, None
    moments = [finite(moment) for moment in times] if isinstance(times, list) else [None]
    instants = [moment for moment in moments if moment is not None]
    if len(instants) < len(moments):
        raise Impossible("output_token_times holds something that is no time")
    gaps = [seconds(after - before, "a gap between tokens") or 0.0 for before, after in pairwise(instants)]
    return instants[0] - start, gaps
