"""Results of AIPerf: one request a line in `profile_export.jsonl`, and a summary in another file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    finite,
    in_seconds,
    instant_ns,
    lines,
    one_value,
    parse_json,
    read_whole,
    seconds,
    text,
    tokens,
)
from ccl_bench.trace.formats.serving.recognition import is_aiperf_records
from ccl_bench.trace.formats.serving.requests import Request, RequestRows, StoredStatistic, statistic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
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
}
_OBJECTIVES = dict.fromkeys(_TTFT, "ttft") | {"inter_token_latency": "tpot", "request_latency": "latency"}
"""Objectives that AIPerf states in ms."""
_HEAD_BYTES = 256 << 10

_CANCELLED = 499
"""HTTP status of a request that the client gave up, which AIPerf uses for those it cancels itself."""


def read_aiperf(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of either file of an AIPerf run."""
    raw, damage = read_whole(stream)
    rows = RequestRows("aiperf", file)
    if not is_aiperf_records(raw[:_HEAD_BYTES]):
        summary = one_value(raw, damage, file)
        if not isinstance(summary, dict):
            raise InputError("is not an object", where=file)
        rows.stored += [*_stored(summary), *_failures(summary), *_objectives(summary)]
        if summary.get("was_cancelled") is True:
            rows.findings.append(_cut_short(file))
        return rows.content()
    for number, line in lines(raw):
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
    """Yield how many requests were cancelled, and how many failed otherwise; AIPerf counts both as errors."""
    errors = finite(dict(_records(summary)).get("error_request_count", {}).get("avg"))
    if errors is None:
        return
    listed = summary.get("error_summary")
    cancelled = 0.0
    for entry in listed if isinstance(listed, list) else ():
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
    given: dict[str, Any] = next((place for place in places if isinstance(place, dict)), {})
    for name, value in given.items():
        number = finite(value)
        if number is not None:
            is_known = name in _OBJECTIVES
            limit = in_seconds(number, _UNITS_S["ms"]) if is_known else number
            yield StoredStatistic(0, _OBJECTIVES.get(name, name), "objective", limit)


def _cut_short(file: str) -> Finding:
    message = "the benchmark was cancelled before its end: its numbers describe the part that ran"
    return Finding("benchmark-cut-short", "warning", message, file, touches=("requests",))


def _record(line: bytes, number: int) -> Request:
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise Impossible(f"it is not complete JSON: {error}") from error
    if not isinstance(entry, dict):
        raise Impossible("it is not an object")
    about, measured = _mapping(entry, "metadata"), _mapping(entry, "metrics")
    name = text(about.get("x_request_id")) or f"line {number}"
    sent = _value(measured, "min_request_timestamp"), about.get("request_start_ns"), about.get("timestamp_ns")
    start = instant_ns(_first(sent), "start")
    status, why = _status(entry, about)
    if status != "ok":
        return Request(0, name, status, start, error=why)
    end = _first((_value(measured, "max_response_timestamp"), about.get("request_end_ns")))
    return Request(
        0,
        name,
        start_ns=start,
        end_ns=instant_ns(end, "end"),
        ttft_s=_first(_time(measured, key) for key in _TTFT),
        latency_s=_time(measured, "request_latency"),
        own_tpot_s=_time(measured, "inter_token_latency"),
        input_tokens=tokens(_value(measured, "input_sequence_length"), "input_sequence_length"),
        output_tokens=tokens(_value(measured, "output_sequence_length"), "output_sequence_length"),
        gaps_s=_gaps(measured),
    )


def _first(values: Iterable[Any]) -> Any:
    """Return the first value that there is."""
    return next((value for value in values if value is not None), None)


def _status(entry: dict[str, Any], about: dict[str, Any]) -> tuple[str, str]:
    """Return what became of a request, and its error."""
    error = entry.get("error")
    said = error if isinstance(error, dict) else {"message": error}
    message = text(said.get("message") or said.get("type"))
    if about.get("was_cancelled") is True or _is_cancellation(said):
        return "cancelled", message
    if error:
        return "failed", message
    phase = about.get("benchmark_phase") or about.get("credit_phase")
    return ("warmup" if phase == "warmup" else "ok"), ""


def _is_cancellation(error: dict[str, Any]) -> bool:
    return error.get("code") == _CANCELLED or "Cancel" in text(error.get("type"))


def _mapping(entry: dict[str, Any], key: str) -> dict[str, Any]:
    found = {} if entry.get(key) is None else entry[key]
    if not isinstance(found, dict):
        raise Impossible(f"{key} is not an object")
    return found


def _value(measured: dict[str, Any], key: str) -> Any:
    return _mapping(measured, key).get("value")


def _unit_s(measured: dict[str, Any], key: str) -> float:
    unit = text(_mapping(measured, key).get("unit"))
    if unit not in _UNITS_S:
        raise Impossible(f"{key} is in {unit or 'no unit'}")
    return _UNITS_S[unit]


def _time(measured: dict[str, Any], key: str) -> float | None:
    value = _value(measured, key)
    return None if value is None else seconds(value, key, _unit_s(measured, key))


def _gaps(measured: dict[str, Any]) -> list[float] | None:
    key = "inter_chunk_latency"
    values = _value(measured, key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise Impossible(f"{key} is not a list")
    unit_s = _unit_s(measured, key)
    return [gap for value in values if (gap := seconds(value, key, unit_s)) is not None]
