"""Results of vLLM's and SGLang's benchmarks.

Those of serving are parallel lists with one entry for each request. Neither tool records the latency of a
request: it is put together from the time to the first token and the gaps after it, as the client measured
them one after the other. The times behind the tool's own TPOT may be some microseconds shorter, because it
looks at the clock twice for the first token. vLLM's offline benchmarks drive an engine without a server and
list no requests.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.json import Decoder

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.trace.formats.serving.json_values import (
    Fields,
    Impossible,
    as_instant_ns,
    as_times,
    finite,
    part,
    read_objects,
    seconds,
    text,
    tokens,
    whole_column,
)
from ccl_bench.trace.formats.serving.requests import (
    TOLERANCE,
    Request,
    RequestRows,
    StoredStatistic,
    in_milliseconds,
    listed_rows,
    numbers_as_lists,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from msgspec import Raw

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats.serving.json_values import Floats

_LISTS = ("ttfts", "itls", "input_lens", "output_lens", "errors", "start_times")
_TIMES = ("ttfts", "itls")
_TOTALS = {
    "duration": "duration",
    "completed": "completed",
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "request_goodput": "goodput",
    "request_goodput:": "goodput",
    "request_throughput": "request_throughput",
    "output_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
    "total_throughput": "total_token_throughput",
    "max_concurrency": "concurrency",
    "request_rate": "request_rate",
}


def read_vllm(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench serve`."""
    return _read(stream, file, "vllm", "--save-detailed")


def read_sglang(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `sglang.bench_serving`, one benchmark a line."""
    return _read(stream, file, "sglang", "--output-details")


def _read(stream: BinaryIO, file: str, tool: str, option: str) -> TraceContent:
    rows = RequestRows(tool, file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        rows.stored += in_milliseconds(document, benchmark)
        rows.stored += totals(document, _TOTALS, benchmark)
        rows.stored += _failures(document, benchmark)
        whole = _whole_lists(document, benchmark) if isinstance(document, Fields) else None
        if whole is not None and rows.add_whole(whole):
            continue
        lists = _lists(document, benchmark, file)
        if not any(name in lists for name in _TIMES):
            rows.unlisted(option)
            continue
        for index in range(len(next(iter(lists.values())))):
            entry = {name: values[index] for name, values in lists.items()}
            place = f"request {index}" + (f" of result {benchmark}" if benchmark else "")
            rows.add(place, partial(_request, entry, index, benchmark))
    return rows.content()


def _failures(document: Mapping[str, Any], benchmark: int) -> Iterator[StoredStatistic]:
    """Yield the number of failed requests; older versions store only those sent and those that succeeded."""
    failed, prompts, completed = (finite(document.get(key)) for key in ("failed", "num_prompts", "completed"))
    if failed is None and prompts is not None and completed is not None:
        failed = max(0.0, prompts - completed)
    if failed is not None:
        yield StoredStatistic(benchmark, "failed", "total", failed)


def _lists(document: Mapping[str, Any], benchmark: int, file: str) -> dict[str, list[Any]]:
    """Return the lists of a result, which are of one length."""
    lists = {name: document[name] for name in _LISTS if document.get(name) is not None}
    for name, values in lists.items():
        if not isinstance(values, list):
            raise InputError("is not a list", where=f"{file}: {name} of result {benchmark}")
    lists = {name: values for name, values in lists.items() if values}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        message = (
            f"the lists of result {benchmark} differ in length, so their entries cannot be assigned: {counts}"
        )
        raise InputError(message, where=file, fix="copy the file again, or repeat the benchmark")
    return lists


def _request(entry: dict[str, Any], index: int, benchmark: int) -> Request:
    """Return one request; of a failed one the tools record 0 as every length and time."""
    error = text(entry.get("errors"))
    if error or entry.get("output_lens") == 0:
        return Request(benchmark, str(index), "failed", error=error)
    ttft = seconds(entry.get("ttfts"), "ttft") or None  # 0 if the answer was not streamed
    gaps = _gaps(entry.get("itls"))
    latency = None if ttft is None or gaps is None else math.fsum([ttft, *gaps])
    start_ns = as_instant_ns(finite(entry.get("start_times")))
    return Request(
        benchmark,
        str(index),
        start_ns=start_ns,
        end_ns=_end_ns(start_ns, latency),
        ttft_s=ttft,
        latency_s=latency,
        input_tokens=tokens(entry.get("input_lens"), "input_len"),
        output_tokens=tokens(entry.get("output_lens"), "output_len"),
        gaps_s=gaps,
    )


def _end_ns(start_ns: int | None, latency: float | None) -> int | None:
    return None if start_ns is None or latency is None else start_ns + round(latency * SECOND_NS)


def _gaps(values: object) -> list[float] | None:
    if values is None:
        return None
    if not isinstance(values, list):
        raise Impossible("itl is not a list")
    gaps = [seconds(value, f"itl {place}") for place, value in enumerate(values)]
    if None in gaps:
        raise Impossible("an itl is missing")
    return [gap for gap in gaps if gap is not None]


# Made here and not where it is used: msgspec 0.22 crashes where two threads are the first to need a type.
_TIMES_IN = Decoder(list[float])
_COUNTS_IN = Decoder(list[int])
_TEXTS_IN = Decoder(list[str | None])
_ROWS_IN = Decoder(list[list[float]])
_USUAL = frozenset({"ttfts", "itls", "output_lens", "errors"})
_DECODERS: dict[str, Decoder[Any]] = {
    "ttfts": _TIMES_IN,
    "input_lens": _COUNTS_IN,
    "output_lens": _COUNTS_IN,
    "errors": _TEXTS_IN,
    "start_times": _TIMES_IN,
}
_GAPS_BYTES = 256 << 10
"""Text of gaps that is decoded at a time: its numbers as objects of Python fit in a core's cache."""

_GAPS_TOGETHER = 1 << 19
"""Gaps that become a column together."""


def _whole_lists(document: Fields, benchmark: int) -> pl.DataFrame | None:
    """Return the lists of a result as rows; None if they are not as usual: `_request` reads them then."""
    raw_lists = {name: raw for name in _LISTS if (raw := document.text(name)) is not None}
    if not _USUAL.issubset(raw_lists):
        return None
    lists: dict[str, Any] = {
        name: part(_DECODERS[name], raw) for name, raw in raw_lists.items() if name != "itls"
    }
    ttfts = lists["ttfts"]
    if not ttfts or any(values is None or len(values) != len(ttfts) for values in lists.values()):
        return None
    waited = _whole_gaps(raw_lists["itls"], ttfts) if whole_column(ttfts) is not None else None
    if waited is None:
        return None
    gaps, latencies = waited
    absent = [None] * len(ttfts)
    errors, counts = [text(error) for error in lists["errors"]], lists["output_lens"]
    starts = [as_instant_ns(start) for start in lists.get("start_times", absent)]
    ends = [_end_ns(start, latency) for start, latency in zip(starts, latencies, strict=True)]
    try:
        columns = {
            "start_ns": pl.Series(starts, dtype=pl.Int64),
            "end_ns": pl.Series(ends, dtype=pl.Int64),
            "ttft_s": pl.Series(ttfts, dtype=pl.Float64),
            "latency_s": pl.Series(latencies, dtype=pl.Float64),
            "input_tokens": pl.Series(lists.get("input_lens", absent), dtype=pl.Int64),
            "output_tokens": pl.Series(counts, dtype=pl.Int64),
            "gaps_s": gaps,
        }
    except (OverflowError, pl.exceptions.PolarsError):
        return None
    is_failed = [bool(error) or count == 0 for error, count in zip(errors, counts, strict=True)]
    streamed = pl.when(pl.col("ttft_s") != 0)
    return listed_rows(benchmark, is_failed, errors, columns).with_columns(
        streamed.then(name).alias(name) for name in ("ttft_s", "latency_s", "end_ns")
    )


def _whole_gaps(raw: Raw, ttfts: list[float]) -> tuple[pl.Series, list[float]] | None:
    """Return the gaps of all requests, and their latencies; None if one is no time."""
    columns: list[pl.Series] = []
    latencies: list[float] = []
    numbers: list[Floats] = []
    lengths: list[int] = []
    for rows in _gap_rows(raw):
        times = None if rows is None else as_times(np.fromiter(chain.from_iterable(rows), np.float64))
        if rows is None or times is None or len(latencies) + len(rows) > len(ttfts):
            return None
        numbers.append(times)
        lengths += map(len, rows)
        for row, ttft in zip(rows, ttfts[len(latencies) :], strict=False):
            row.append(ttft)
            latencies.append(math.fsum(row))
        if sum(map(len, numbers)) >= _GAPS_TOGETHER or len(latencies) == len(ttfts):
            columns.append(numbers_as_lists(np.concatenate(numbers), lengths))
            numbers, lengths = [], []
    return (pl.concat(columns), latencies) if len(latencies) == len(ttfts) else None


def _gap_rows(raw: Raw) -> Iterator[list[list[float]] | None]:
    """Yield the gaps of some requests after the other; None if they are no lists of numbers."""
    view, at = memoryview(raw), 1
    last = len(view) - 1
    if view[0] != ord("["):
        yield None
    while at < last:
        end = _end_of_row(view, min(at + _GAPS_BYTES, last))
        yield part(_ROWS_IN, b"[" + bytes(view[at:end]).lstrip(b" \t\r\n,") + b"]")
        at = end


def _end_of_row(view: memoryview, start: int) -> int:
    """Return the end of the row that is cut at `start`; the last character ends the rows."""
    last = len(view) - 1
    while start < last:
        if (bracket := bytes(view[start : start + _GAPS_BYTES]).find(b"]")) >= 0:
            return min(start + bracket + 1, last)
        start += _GAPS_BYTES
    return last


_OF_BATCHES = {"avg_latency": "mean", "std_latency": "std"}
_OFFLINE_TOTALS = {"num_requests": "completed", "elapsed_time": "duration", "total_num_tokens": "tokens"}


def read_vllm_latency(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench latency`: how long batches of requests took."""
    rows = RequestRows("vllm_latency", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        rows.stored += _of_batches(document, benchmark)
        latencies = document.get("latencies")
        rows.findings += _disagreement(document, latencies if isinstance(latencies, list) else [], file)
    return rows.content()


def read_vllm_throughput(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench throughput`: requests, tokens and the time they took."""
    rows = RequestRows("vllm_throughput", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        rows.stored += totals(document, _OFFLINE_TOTALS, benchmark)
    return rows.content()


def _of_batches(document: Mapping[str, Any], benchmark: int) -> Iterator[StoredStatistic]:
    percentiles = document.get("percentiles")
    stored = {statistic: document.get(key) for key, statistic in _OF_BATCHES.items()}
    if isinstance(percentiles, dict):
        stored |= {f"p{share}": value for share, value in percentiles.items()}
    for statistic, value in stored.items():
        number = finite(value)
        if number is not None:
            yield StoredStatistic(benchmark, "latency", statistic, number)


def _disagreement(document: Mapping[str, Any], latencies: list[Any], file: str) -> list[Finding]:
    """Find a mean that the listed latencies do not give."""
    values = [number for latency in latencies if (number := finite(latency)) is not None]
    stated_mean = finite(document.get("avg_latency"))
    if stated_mean is None or not values:
        return []
    mean = math.fsum(values) / len(values)
    if abs(mean - stated_mean) <= TOLERANCE * max(abs(mean), abs(stated_mean)):
        return []
    message = f"the mean latency is stated as {stated_mean:.6g} s, and the batches give {mean:.6g} s"
    return [Finding("statistics-disagree", "warning", message, file, touches=("requests",))]
