"""Results of AIPerf: one request a line in `profile_export.jsonl`, and a summary in another file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.json import Decoder

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.trace import memory
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    finite,
    first_of,
    in_seconds,
    instant_ns,
    lines,
    mapping,
    one_value,
    parsed,
    read_whole,
    seconds,
    text,
    tokens,
    typed,
)
from ccl_bench.trace.formats.serving.recognition import is_aiperf_records
from ccl_bench.trace.formats.serving.requests import Request, RequestRows, StoredStatistic, statistic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats.serving.json_values import Floats

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
_HEAD_BYTES = 256 << 10

_WARM_UP = "warmup"

_CANCELLED = 499
"""HTTP status of a request that the client gave up, which AIPerf uses for those it cancels itself."""


def read_aiperf(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of either file of an AIPerf run."""
    raw, damage = read_whole(stream)
    rows = RequestRows("aiperf", file)
    if not is_aiperf_records(bytes(raw[:_HEAD_BYTES])):
        memory.hold_json(raw)
        summary = one_value(raw, damage, file)
        if not isinstance(summary, dict):
            raise InputError("is not an object", where=file)
        rows.stored += [*_stored(summary), *_failures(summary), *_objectives(summary)]
        if mapping(mapping(summary, "input_config"), "endpoint").get("streaming") is False:
            rows.stored.append(StoredStatistic(0, "streaming", "total", 0.0))
        if summary.get("was_cancelled") is True:
            rows.findings.append(_cut_short(file))
        return rows.content()
    memory.hold_values(raw)
    for number, line in lines(raw):
        memory.hold(len(line))
        rows.add(f"line {number}", partial(_record, line, number))
    if damage:
        rows.lost.append(f"everything after line {number}: {damage}")
    return rows.content()


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
    about = summary.get("input_config")
    config = about if isinstance(about, dict) else {}
    older = config.get("input")
    places = (config.get("slos"), older.get("goodput") if isinstance(older, dict) else None)
    objectives: dict[str, Any] = next((place for place in places if isinstance(place, dict)), {})
    for name, value in objectives.items():
        number = finite(value)
        if number is not None:
            is_known = name in _OBJECTIVES
            limit = in_seconds(number, _UNITS_S["ms"]) if is_known else number
            yield StoredStatistic(0, _OBJECTIVES.get(name, name), "objective", limit)


def _cut_short(file: str) -> Finding:
    message = "the benchmark was cancelled before its end: its numbers describe the part that ran"
    return Finding("benchmark-cut-short", "warning", message, file, touches=("requests",))


class _Number(Struct, gc=False):
    value: int | float | None = None
    unit: str | None = None


class _Numbers(Struct, gc=False):
    value: list[float] | None = None
    unit: str | None = None


class _Metrics(Struct, gc=False):
    time_to_first_token: _Number | None = None
    ttft: _Number | None = None
    request_latency: _Number | None = None
    inter_token_latency: _Number | None = None
    inter_chunk_latency: _Numbers | None = None
    input_sequence_length: _Number | None = None
    output_sequence_length: _Number | None = None
    min_request_timestamp: _Number | None = None
    max_response_timestamp: _Number | None = None


class _Metadata(Struct, gc=False):
    x_request_id: str | None = None
    request_start_ns: int | None = None
    request_end_ns: int | None = None
    timestamp_ns: int | None = None
    was_cancelled: bool | None = None
    benchmark_phase: str | None = None
    credit_phase: str | None = None


class _Record(Struct, gc=False):
    """The line of a request that succeeded, as usual."""

    metadata: _Metadata
    metrics: _Metrics
    error: None = None


# Made here and not where it is used: msgspec 0.22 crashes where two threads are the first to need a type.
_RECORD = Decoder(_Record)


def _usual(line: bytearray, number: int) -> Request | None:
    """Return a request that succeeded; None if it is not as usual: `_record` reads it then."""
    record = typed(_RECORD, line)
    if record is None:
        return None
    metadata, metrics = record.metadata, record.metrics
    if metadata.was_cancelled or _WARM_UP in {metadata.benchmark_phase, metadata.credit_phase}:
        return None
    sent = _value_of(metrics.min_request_timestamp), metadata.request_start_ns, metadata.timestamp_ns
    ended = _value_of(metrics.max_response_timestamp), metadata.request_end_ns
    numbers = metrics.inter_chunk_latency
    gaps = None
    try:
        if numbers is not None and numbers.value is not None:
            gaps = _whole_gaps(numbers.value, _known_s(numbers.unit))
        return Request(
            0,
            text(metadata.x_request_id) or f"line {number}",
            start_ns=instant_ns(first_of(*sent), "start"),
            end_ns=instant_ns(first_of(*ended), "end"),
            ttft_s=first_of(_said_s(metrics.time_to_first_token), _said_s(metrics.ttft)),
            latency_s=_said_s(metrics.request_latency),
            own_tpot_s=_said_s(metrics.inter_token_latency),
            input_tokens=tokens(_value_of(metrics.input_sequence_length), ""),
            output_tokens=tokens(_value_of(metrics.output_sequence_length), ""),
            gaps_s=gaps,
        )
    except Impossible:
        return None


def _value_of(number: _Number | None) -> Any:
    return None if number is None else number.value


def _said_s(number: _Number | None) -> float | None:
    if number is None or number.value is None:
        return None
    return seconds(number.value, "", _known_s(number.unit))


def _known_s(unit: str | None) -> float:
    if unit not in _UNITS_S:
        raise Impossible
    return _UNITS_S[unit]


def _whole_gaps(values: list[float], unit_s: float) -> Floats:
    for value in (min(values), max(values)) if values else ():
        seconds(value, "", unit_s)
    return in_seconds(np.fromiter(values, np.float64, len(values)), unit_s)


def _record(line: bytearray, number: int) -> Request:
    if (usual := _usual(line, number)) is not None:
        return usual
    try:
        entry = parsed(line)
    except ValueError as error:
        raise Impossible(f"it is not complete JSON: {error}") from error
    if not isinstance(entry, dict):
        raise Impossible("it is not an object")
    metadata, metrics = _mapping(entry, "metadata"), _mapping(entry, "metrics")
    name = text(metadata.get("x_request_id")) or f"line {number}"
    sent = (
        _value(metrics, "min_request_timestamp"),
        metadata.get("request_start_ns"),
        metadata.get("timestamp_ns"),
    )
    start = instant_ns(first_of(*sent), "start")
    status, why = _status(entry, metadata)
    if status != "ok":
        return Request(0, name, status, start, error=why)
    end = first_of(_value(metrics, "max_response_timestamp"), metadata.get("request_end_ns"))
    return Request(
        0,
        name,
        start_ns=start,
        end_ns=instant_ns(end, "end"),
        ttft_s=first_of(*(_time(metrics, key) for key in _TTFT)),
        latency_s=_time(metrics, "request_latency"),
        own_tpot_s=_time(metrics, "inter_token_latency"),
        input_tokens=tokens(_value(metrics, "input_sequence_length"), "input_sequence_length"),
        output_tokens=tokens(_value(metrics, "output_sequence_length"), "output_sequence_length"),
        gaps_s=_gaps(metrics),
    )


def _status(entry: dict[str, Any], metadata: dict[str, Any]) -> tuple[str, str]:
    """Return the outcome of a request, and its error."""
    error = entry.get("error")
    details = error if isinstance(error, dict) else {"message": error}
    message = text(details.get("message") or details.get("type"))
    if metadata.get("was_cancelled") is True or _is_cancellation(details):
        return "cancelled", message
    if error:
        return "failed", message
    phase = metadata.get("benchmark_phase") or metadata.get("credit_phase")
    return (_WARM_UP if phase == _WARM_UP else "ok"), ""


def _is_cancellation(error: dict[str, Any]) -> bool:
    return error.get("code") == _CANCELLED or "Cancel" in text(error.get("type"))


def _mapping(entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = {} if entry.get(key) is None else entry[key]
    if not isinstance(value, dict):
        raise Impossible(f"{key} is not an object")
    return value


def _value(metrics: dict[str, Any], key: str) -> Any:
    return _mapping(metrics, key).get("value")


def _unit_s(metrics: dict[str, Any], key: str) -> float:
    unit = text(_mapping(metrics, key).get("unit"))
    if unit not in _UNITS_S:
        raise Impossible(f"{key} is in {unit or 'no unit'}")
    return _UNITS_S[unit]


def _time(metrics: dict[str, Any], key: str) -> float | None:
    value = _value(metrics, key)
    return None if value is None else seconds(value, key, _unit_s(metrics, key))


def _gaps(metrics: dict[str, Any]) -> list[float] | None:
    key = "inter_chunk_latency"
    values = _value(metrics, key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise Impossible(f"{key} is not a list")
    unit_s = _unit_s(metrics, key)
    return [gap for value in values if (gap := seconds(value, key, unit_s)) is not None]
