"""Results of GuideLLM: the benchmarks of one file, often one of each load, with statistics and requests.

Statistics cover requests inside the window of measurement; those before and after it are listed too. Lists
may be samples.
"""

from __future__ import annotations

from functools import partial
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

_MS = 1e-3
_QUANTITIES = {
    "time_to_first_token_ms": ("ttft", _MS),
    "request_latency": ("latency", 1.0),
    "time_per_output_token_ms": ("own_tpot", _MS),
}
_RATES = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "tokens_per_second": "total_token_throughput",
}
_TOKENS = {"prompt_token_count": "input_tokens", "output_token_count": "output_tokens"}
_ENDS = {"successful": "completed", "errored": "failed", "incomplete": "cancelled"}
_LOAD = {"rate": "request_rate", "streams": "concurrency"}
_PERCENTILES = {"p001": "p0.1", "p01": "p1", "p05": "p5", "p999": "p99.9"}


def read_guidellm(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of `benchmarks.json`, one benchmark for each load that was tried."""
    rows = RequestRows("guidellm", file)
    number = 0
    for document in read_objects(stream, file):
        benchmarks = document.get("benchmarks")
        for entry in benchmarks if isinstance(benchmarks, list) else ():
            if isinstance(entry, dict):
                rows.stored += _stored(entry, number)
                _add_requests(rows, entry, number)
                number += 1
    return rows.content()


def _stored(entry: dict[str, Any], number: int) -> Iterator[StoredStatistic]:
    metrics = mapping(entry, "metrics")
    for name, (quantity, unit_s) in _QUANTITIES.items():
        summary = _succeeded(metrics, name)
        yield from statistics_of(summary, quantity, number, unit_s)
        percentiles = mapping(summary, "percentiles")
        named = {_PERCENTILES.get(key, key): value for key, value in percentiles.items()}
        yield from statistics_of(named, quantity, number, unit_s)
    # It weights the mean time of each request by its gaps, so that the mean alone is one of gaps.
    mean_gap = {"mean": _succeeded(metrics, "inter_token_latency_ms").get("mean")}
    yield from statistics_of(mean_gap, "itl", number, _MS)
    for name, quantity in _RATES.items():
        yield from totals(_succeeded(metrics, name), {"mean": quantity}, number)
    for name, quantity in _TOKENS.items():
        yield from totals(_succeeded(metrics, name), {"total_sum": quantity}, number)
    for end, quantity in _ENDS.items():
        if (count := _count(metrics, end)) is not None:
            yield StoredStatistic(number, quantity, "total", count)
    start, end_time = _window(entry)
    duration = finite(entry.get("duration"))
    if not duration and start is not None and end_time is not None:
        duration = end_time - start
    if duration:
        yield StoredStatistic(number, "duration", "total", duration)
    strategy = mapping(mapping(entry, "config") or mapping(entry, "args"), "strategy")
    yield from totals(strategy, _LOAD, number)


def _succeeded(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the summary of one quantity over the requests that succeeded."""
    return mapping(mapping(metrics, name), "successful")


def _count(metrics: Mapping[str, Any], end: str) -> float | None:
    """Return the requests of the window that ended so; older versions only count the times of each end."""
    total = finite(mapping(metrics, "request_totals").get(end))
    return finite(mapping(mapping(metrics, "request_latency"), end).get("count")) if total is None else total


def _window(entry: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the start and the end of the measurement, s."""
    scheduler = mapping(entry, "scheduler_metrics")
    start = finite(first_of(scheduler.get("measure_start_time"), entry.get("start_time")))
    return start, finite(first_of(scheduler.get("measure_end_time"), entry.get("end_time")))


def _add_requests(rows: RequestRows, entry: dict[str, Any], number: int) -> None:
    """Add the requests of a benchmark, unless only some of those that succeeded are listed."""
    listed = mapping(entry, "requests")
    lists = {status: items for status in _ENDS if isinstance(items := listed.get(status), list)}
    succeeded = lists.get("successful", [])
    start, end = _window(entry)
    outside = set()  # those that ended before the measurement, or were sent after it
    for index, request in enumerate(succeeded):
        sent, ended = _times(request) if isinstance(request, dict) else (None, None)
        is_before = start is not None and ended is not None and ended < start
        if is_before or (end is not None and sent is not None and sent > end):
            outside.add(index)
    completed, count = _count(mapping(entry, "metrics"), "successful"), len(succeeded)
    if not any(lists.values()) or (completed and not count):
        rows.unlisted("--sample-requests")
        return
    if completed is not None and completed not in {count, count - len(outside)}:
        message = (
            f"{count} of {completed:g} requests that succeeded are listed, so the statistics of the tool are "
            "used; --sample-requests records more of them"
        )
        finding = Finding("requests-not-listed", "warning", message, rows.file, touches=("requests",))
        rows.findings.append(finding)
        return
    for status, items in lists.items():
        for index, request in enumerate(items):
            is_apart = status == "successful" and index in outside and completed != count
            ended_as = "warmup" if is_apart else "ok" if status == "successful" else _ENDS[status]
            read = partial(_request, request, number, ended_as, index)
            rows.add(f"request {index} of {status} of benchmark {number}", read)


def _times(request: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return when a request was sent and when it ended, s."""
    timings = mapping(mapping(request, "info"), "timings")
    sent = (request.get("request_start_time"), request.get("start_time"), timings.get("request_start"))
    ended = (request.get("request_end_time"), request.get("end_time"), timings.get("request_end"))
    return finite(first_of(*sent)), finite(first_of(*ended))


def _request(request: object, number: int, status: str, index: int) -> Request:
    if not isinstance(request, dict):
        raise Impossible("it is not an object")
    name = text(request.get("request_id")) or f"{status} {index}"
    sent, ended = _times(request)
    info = mapping(request, "info")
    if status != "ok":
        error = text(first_of(request.get("error"), info.get("error")))
        return Request(number, name, status, as_instant_ns(sent), error=error)
    if (ttft_ms := request.get("time_to_first_token_ms")) is not None:
        ttft = seconds(ttft_ms, "time_to_first_token_ms", _MS) or None  # 0 if no token came by itself
    else:
        iteration = mapping(info, "timings").get("first_token_iteration")
        first = finite(first_of(request.get("first_token_time"), iteration))
        waited = None if first is None or sent is None else first - sent
        ttft = seconds(waited, "the time to the first token")
    took = None if sent is None or ended is None else ended - sent
    return Request(
        number,
        name,
        start_ns=as_instant_ns(sent),
        end_ns=as_instant_ns(ended),
        ttft_s=ttft,
        latency_s=seconds(first_of(request.get("request_latency"), took), "request_latency"),
        own_tpot_s=seconds(request.get("time_per_output_token_ms"), "time_per_output_token_ms", _MS),
        input_tokens=tokens(_counted(request, "prompt_tokens", "input_metrics"), "prompt_tokens"),
        output_tokens=tokens(_counted(request, "output_tokens", "output_metrics"), "output_tokens"),
    )


def _counted(request: Mapping[str, Any], name: str, usage: str) -> Any:
    """Return the tokens of a request on one side, None if unknown."""
    of_side = mapping(request, usage)
    return first_of(request.get(name), of_side.get("total_tokens"), of_side.get("text_tokens"))
