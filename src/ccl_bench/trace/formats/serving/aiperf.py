"""Results of AIPerf: one request a line in `profile_export.jsonl`, and a summary in another file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import json_decoder
from ccl_bench.trace import memory
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    decoded,
    finite,
    first_of,
    in_seconds,
    instant_ns,
    lines,
    mapping,
    one_value,
    read_whole,
    seconds,
    text,
    times,
    tokens,
)
from ccl_bench.trace.formats.serving.recognition import is_aiperf_records
from ccl_bench.trace.formats.serving.requests import (
    Request,
    RequestRows,
    Setting,
    StoredStatistic,
    settings_of,
    statistic,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_TTFT = ("time_to_first_token", "ttft")
"""The name in newer and in older versions."""
_QUANTITIES = dict.fromkeys(_TTFT, "ttft") | {
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "latency",
}
_TOTALS = {
    "request_count": "completed",
    "total_isl": "input_tokens",
    "total_osl": "output_tokens",
    "goodput": "goodput",
    "good_request_count": "good",
    "request_throughput": "request_throughput",
    "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
}
_OBJECTIVES = dict.fromkeys(_TTFT, "ttft") | {"inter_token_latency": "tpot", "request_latency": "latency"}
"""Objectives that AIPerf states in ms."""
_LOAD = {"concurrency": "concurrency", "request_rate": "request_rate"}
_HEAD_BYTES = 256 << 10

_WARM_UP = "warmup"

_CANCELLED = 499
"""HTTP status of a request that the client gave up, which AIPerf uses for those it cancels itself."""


def read_aiperf(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of either file of an AIPerf run."""
    raw, damage = read_whole(stream)
    rows = RequestRows("aiperf", file)
    if is_aiperf_records(bytes(raw[:_HEAD_BYTES])):
        memory.hold_values(raw)
        for number, line in lines(raw):
            memory.hold(len(line))
            rows.add(f"line {number}", partial(_request, line, number))
        if damage:
            rows.lost.append(f"everything after line {number}: {damage}")
        return rows.content()
    memory.hold_json(raw)
    summary = one_value(raw, damage, file)
    if not isinstance(summary, dict):
        raise InputError("is not an object", where=file)
    rows.stored += [*_stored(summary), *_failures(summary), *_objectives(summary)]
    config = mapping(summary, "input_config")
    rows.stored += totals(mapping(config, "loadgen"), _LOAD, 0)
    rows.settings += _settings(config)
    if mapping(config, "endpoint").get("streaming") is False:
        rows.stored.append(StoredStatistic(0, "streaming", "total", 0.0))
    if summary.get("was_cancelled") is True:
        message = "the benchmark was cancelled before its end: its numbers describe the part that ran"
        rows.findings.append(Finding("benchmark-cut-short", "warning", message, file, touches=("requests",)))
    return rows.content()


def _settings(config: Mapping[str, Any]) -> Iterator[Setting]:
    models = mapping(config, "endpoint").get("model_names")
    if isinstance(models, list):
        yield from settings_of({"model": ", ".join(map(str, models))}, {"model": "model"}, 0)
    prompt = mapping(mapping(config, "input"), "prompt")
    for name in ("input_tokens", "output_tokens"):
        yield from settings_of(mapping(prompt, name), {"mean": name}, 0)


def _records(summary: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statistics by name, which older versions keep under `records`."""
    records = summary.get("records")
    for name, record in (records if isinstance(records, dict) else summary).items():
        if isinstance(record, dict):
            yield name, record


def _stored(summary: dict[str, Any]) -> Iterator[StoredStatistic]:
    for name, record in _records(summary):
        unit_s = _UNITS_S.get(str(record.get("unit")), 1.0)
        for key, value in record.items():
            number = finite(value)
            if name in _QUANTITIES and key not in {"count", "unit"} and number is not None:
                yield StoredStatistic(0, _QUANTITIES[name], statistic(key), in_seconds(number, unit_s))
        average = finite(record.get("avg"))
        if name in _TOTALS and average is not None:
            yield StoredStatistic(0, _TOTALS[name], "total", average)
        if name == "benchmark_duration" and average is not None:
            yield StoredStatistic(0, "duration", "total", in_seconds(average, unit_s))


def _failures(summary: dict[str, Any]) -> Iterator[StoredStatistic]:
    """Yield the numbers of cancelled and of otherwise failed requests; AIPerf counts both as errors."""
    errors = finite(dict(_records(summary)).get("error_request_count", {}).get("avg"))
    if errors is None:
        return
    entries = summary.get("error_summary")
    cancelled = 0.0
    for entry in entries if isinstance(entries, list) else ():
        details = entry.get("error_details") if isinstance(entry, dict) else None
        if isinstance(details, dict) and _is_cancellation(details):
            cancelled += finite(entry.get("count")) or 0.0
    yield StoredStatistic(0, "cancelled", "total", min(cancelled, errors))
    yield StoredStatistic(0, "failed", "total", errors - min(cancelled, errors))


def _objectives(summary: dict[str, Any]) -> Iterator[StoredStatistic]:
    """Yield the service-level objectives that AIPerf was given, those of unknown quantities by their name."""
    config = mapping(summary, "input_config")
    newer, older = config.get("slos"), mapping(mapping(config, "input"), "goodput")
    for name, value in (newer if isinstance(newer, dict) else older).items():
        number = finite(value)
        if number is not None:
            is_known = name in _OBJECTIVES
            limit = in_seconds(number, _UNITS_S["ms"]) if is_known else number
            yield StoredStatistic(0, _OBJECTIVES.get(name, name), "objective", limit)


class _Metric(Struct, gc=False):
    value: Any = None
    unit: Any = None


class _Metrics(Struct, gc=False):
    time_to_first_token: _Metric | None = None
    ttft: _Metric | None = None
    request_latency: _Metric | None = None
    inter_token_latency: _Metric | None = None
    inter_chunk_latency: _Metric | None = None
    input_sequence_length: _Metric | None = None
    output_sequence_length: _Metric | None = None
    min_request_timestamp: _Metric | None = None
    max_response_timestamp: _Metric | None = None


class _Metadata(Struct, gc=False):
    x_request_id: Any = None
    request_start_ns: Any = None
    request_end_ns: Any = None
    timestamp_ns: Any = None
    was_cancelled: Any = None
    benchmark_phase: Any = None
    credit_phase: Any = None


class _Record(Struct, gc=False):
    """The line of a request; what else it holds is skipped, not decoded."""

    metadata: _Metadata | None = None
    metrics: _Metrics | None = None
    error: Any = None


_RECORD = json_decoder(_Record)
_NO_METADATA, _NO_METRICS = _Metadata(), _Metrics()


def _request(line: bytearray, number: int) -> Request:
    try:
        record = decoded(line, _RECORD)
    except ValidationError as error:
        raise Impossible(f"it is no record of a request: {error}") from error
    except ValueError as error:
        raise Impossible(f"it is not complete JSON: {error}") from error
    metadata, metrics = record.metadata or _NO_METADATA, record.metrics or _NO_METRICS
    name = text(metadata.x_request_id) or f"line {number}"
    sent = _value(metrics.min_request_timestamp), metadata.request_start_ns, metadata.timestamp_ns
    start = instant_ns(first_of(*sent), "start")
    status, why = _status(record.error, metadata)
    if status != "ok":
        return Request(0, name, status, start, error=why)
    ended = first_of(_value(metrics.max_response_timestamp), metadata.request_end_ns)
    ttft = _time(metrics.time_to_first_token, "time_to_first_token")
    chunks, chunks_name = metrics.inter_chunk_latency, "inter_chunk_latency"
    return Request(
        0,
        name,
        start_ns=start,
        end_ns=instant_ns(ended, "end"),
        ttft_s=_time(metrics.ttft, "ttft") if ttft is None else ttft,
        latency_s=_time(metrics.request_latency, "request_latency"),
        own_tpot_s=_time(metrics.inter_token_latency, "inter_token_latency"),
        input_tokens=tokens(_value(metrics.input_sequence_length), "input_sequence_length"),
        output_tokens=tokens(_value(metrics.output_sequence_length), "output_sequence_length"),
        gaps_s=None
        if chunks is None or chunks.value is None
        else times(chunks.value, chunks_name, _unit_s(chunks, chunks_name)),
    )


def _status(error: Any, metadata: _Metadata) -> tuple[str, str]:
    """Return the outcome of a request, and its error."""
    details = error if isinstance(error, dict) else {"message": error}
    message = text(details.get("message") or details.get("type"))
    if metadata.was_cancelled is True or _is_cancellation(details):
        return "cancelled", message
    if error:
        return "failed", message
    return (_WARM_UP if (metadata.benchmark_phase or metadata.credit_phase) == _WARM_UP else "ok"), ""


def _is_cancellation(error: dict[str, Any]) -> bool:
    return error.get("code") == _CANCELLED or "Cancel" in text(error.get("type"))


def _value(metric: _Metric | None) -> Any:
    return None if metric is None else metric.value


def _unit_s(metric: _Metric, name: str) -> float:
    unit = text(metric.unit)
    if unit not in _UNITS_S:
        raise Impossible(f"{name} is in {unit or 'no unit'}")
    return _UNITS_S[unit]


def _time(metric: _Metric | None, name: str) -> float | None:
    if metric is None or metric.value is None:
        return None
    return seconds(metric.value, name, _unit_s(metric, name))
