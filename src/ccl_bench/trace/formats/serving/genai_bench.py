"""Results of genai-bench: one scenario at one concurrency a file, with one object for each request."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    finite,
    in_seconds,
    mapping,
    read_objects,
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
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_LIST = "individual_request_metrics"

_UNITS_S = {"s": 1.0, "ms": 1e-3}
_QUANTITIES = {"ttft": "ttft", "tpot": "tpot", "e2e_latency": "latency"}
_COUNTS = {
    "run_duration": "duration",
    "num_completed_requests": "completed",
    "num_error_requests": "failed",
    "num_concurrency": "concurrency",
}
_SUMS = {"num_input_tokens": "input_tokens", "num_output_tokens": "output_tokens"}


def read_genai_bench(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of genai-bench."""
    rows = RequestRows("genai_bench", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        unit = document.get("_time_unit", "s")
        if not isinstance(unit, str) or unit not in _UNITS_S:
            raise InputError(f"_time_unit is {unit!r}, which is neither s nor ms", where=file)
        aggregate = mapping(document, "aggregated_metrics")
        rows.stored += _stored(aggregate, benchmark, _UNITS_S[unit])
        rows.settings += settings_of(
            aggregate, {"scenario": "scenario", "batch_size": "batch_size"}, benchmark
        )
        entries = document.get(_LIST)
        if not isinstance(entries, list):
            rows.unlisted(_LIST)
            continue
        for index, entry in enumerate(entries):
            rows.add(f"request {index}", partial(_request, entry, index, benchmark, _UNITS_S[unit]))
    return rows.content()


def _stored(aggregate: Mapping[str, Any], benchmark: int, unit_s: float) -> Iterator[StoredStatistic]:
    """Yield the statistics; the duration of the run is in seconds whatever the unit of the others is."""
    yield from totals(aggregate, _COUNTS, benchmark)
    stats = mapping(aggregate, "stats")
    for name in stats:
        for key, value in mapping(stats, name).items():
            number = finite(value)
            if number is None:
                continue
            if name in _QUANTITIES and key != "sum":
                yield StoredStatistic(
                    benchmark, _QUANTITIES[name], statistic(key), in_seconds(number, unit_s)
                )
            if name in _SUMS and key == "sum":
                yield StoredStatistic(benchmark, _SUMS[name], "total", number)


def _request(entry: object, index: int, benchmark: int, unit_s: float) -> Request:
    if not isinstance(entry, dict):
        raise Impossible("it is not an object")
    if entry.get("error_code") is not None:
        error = text(entry.get("error_message")) or f"error {text(entry['error_code'])}"
        return Request(benchmark, str(index), "failed", error=error)
    return Request(
        benchmark,
        str(index),
        ttft_s=seconds(entry.get("ttft"), "ttft", unit_s),
        latency_s=seconds(entry.get("e2e_latency"), "e2e_latency", unit_s),
        own_tpot_s=seconds(entry.get("tpot"), "tpot", unit_s),
        input_tokens=tokens(entry.get("num_input_tokens"), "num_input_tokens"),
        output_tokens=tokens(entry.get("num_output_tokens"), "num_output_tokens"),
    )
