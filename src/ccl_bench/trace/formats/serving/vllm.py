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
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import json_decoder
from ccl_bench.base.units import SECOND_NS
from ccl_bench.trace.formats.serving.json_values import (
    Fields,
    Impossible,
    are_times,
    as_instant_ns,
    finite,
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
    differ_little,
    in_milliseconds,
    settings_of,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats.serving.json_values import Floats

_GAPS = "itls"
_LISTS = ("ttfts", _GAPS, "input_lens", "output_lens", "errors", "start_times")
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
_SETTINGS = {
    "model_id": "model",
    "tokenizer_id": "tokenizer",
    "backend": "engine",
    "burstiness": "burstiness",
    "dataset_name": "dataset",
    "random_input_len": "random_input_tokens",
    "random_output_len": "random_output_tokens",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    **{axis: axis for axis in ("tp", "pp", "dp", "ep")},
}
"""Keys of a result, and those that `vllm bench serve --metadata KEY=VALUE` adds."""


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
        rows.settings += settings_of(document, _SETTINGS, benchmark)
        failed, sent, completed = (
            finite(document.get(key)) for key in ("failed", "num_prompts", "completed")
        )
        if failed is None and sent is not None and completed is not None:
            failed = max(0.0, sent - completed)  # older versions store only these two
        if failed is not None:
            rows.stored.append(StoredStatistic(benchmark, "failed", "total", failed))
        if not _add_requests(rows, document, benchmark):
            rows.unlisted(option)
    return rows.content()


def _add_requests(rows: RequestRows, document: Fields, benchmark: int) -> bool:
    """Add the requests of a result, whose lists are of one length; False if it lists no times."""
    where = f"{rows.file}: {{}} of result {benchmark}"
    lists = {name: _list(document, name, where) for name in _LISTS if name != _GAPS}
    gap_rows = _gap_rows(document, where)
    first = next(gap_rows, None)
    if first is None and not lists["ttfts"]:
        return False
    shortest = min((len(values) for values in lists.values() if values), default=math.inf)
    entries = repeat((None, None), len(lists["ttfts"])) if first is None else chain([first], gap_rows)
    listed = 0
    for index, gaps in enumerate(entries):
        listed += 1
        if index < shortest:
            entry = {name: values[index] for name, values in lists.items() if values}
            position = f"request {index}" + (f" of result {benchmark}" if benchmark else "")
            rows.add(position, partial(_request, entry, *gaps, index, benchmark))
    lengths = {
        name: len(lists[name]) if name in lists else listed for name in _LISTS if lists.get(name, first)
    }
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        message = (
            f"the lists of result {benchmark} differ in length, so their entries cannot be assigned: {counts}"
        )
        raise InputError(message, where=rows.file, fix="copy the file again, or repeat the benchmark")
    return True


def _list(document: Fields, name: str, where: str) -> list[Any]:
    values = document.get(name)
    if not isinstance(values, list | None):
        raise InputError("is not a list", where=where.format(name))
    return values or []


def _request(
    entry: dict[str, Any], gaps: Any, gaps_s: Floats | list[float] | None, index: int, benchmark: int
) -> Request:
    """Return one request; of a failed one the tools record 0 as every length and time."""
    error = text(entry.get("errors"))
    if error or entry.get("output_lens") == 0:
        return Request(benchmark, str(index), "failed", error=error)
    ttft = seconds(entry.get("ttfts"), "ttft") or None  # 0 if the answer was not streamed
    if gaps is not None and gaps_s is None:
        gaps_s = times(gaps, "itl")
        if len(gaps_s) < len(gaps):
            raise Impossible("an itl is missing")
    latency = None if ttft is None or gaps is None else math.fsum([ttft, *gaps])
    start_ns = as_instant_ns(finite(entry.get("start_times")))
    return Request(
        benchmark,
        str(index),
        start_ns=start_ns,
        end_ns=None if start_ns is None or latency is None else start_ns + round(latency * SECOND_NS),
        ttft_s=ttft,
        latency_s=latency,
        input_tokens=tokens(entry.get("input_lens"), "input_len"),
        output_tokens=tokens(entry.get("output_lens"), "output_len"),
        gaps_s=gaps_s,
    )


_ROWS = json_decoder(list[list[float]])
_GAPS_BYTES = 256 << 10
"""Text of gaps that is decoded at a time: its numbers as objects of Python fit in a core's cache."""


def _gap_rows(document: Fields, where: str) -> Iterator[tuple[Any, Floats | None]]:
    """Yield the gaps of each request as they are recorded, and as times in s if all near them are such."""
    done = 0
    recorded = document.text(_GAPS)
    if recorded is not None and (view := memoryview(recorded))[0] == ord("["):
        at, last = 1, len(view) - 1
        try:
            while at < last:
                # A row ends with the next bracket; where one is no list of numbers, the text does not decode.
                end = min(at + _GAPS_BYTES, last)
                while end < last and view[end - 1] != ord("]"):
                    bracket = bytes(view[end : end + _GAPS_BYTES]).find(b"]")
                    end = min(end + (bracket + 1 if bracket >= 0 else _GAPS_BYTES), last)
                rows = _ROWS.decode(b"[" + bytes(view[at:end]).lstrip(b" \t\r\n,") + b"]")
                gaps_s = np.fromiter(chain.from_iterable(rows), np.float64)
                are_sound, start = are_times(gaps_s), 0
                for row in rows:
                    yield row, gaps_s[start : start + len(row)] if are_sound else None
                    start += len(row)
                at, done = end, done + len(rows)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            return
    for row in _list(document, _GAPS, where)[done:]:
        yield row, None


_OF_BATCHES = {"avg_latency": "mean", "std_latency": "std"}
_OFFLINE_TOTALS = {"num_requests": "completed", "elapsed_time": "duration", "total_num_tokens": "tokens"}


def read_vllm_latency(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench latency`: how long batches of requests took."""
    rows = RequestRows("vllm_latency", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        stored = {statistic: document.get(key) for key, statistic in _OF_BATCHES.items()}
        percentiles = mapping(document, "percentiles")
        stored |= {f"p{share}": value for share, value in percentiles.items()}
        rows.stored += [
            StoredStatistic(benchmark, "latency", statistic, number)
            for statistic, value in stored.items()
            if (number := finite(value)) is not None
        ]
        latencies = document.get("latencies")
        listed = latencies if isinstance(latencies, list) else []
        values = [number for latency in listed if (number := finite(latency)) is not None]
        stated_mean = finite(document.get("avg_latency"))
        if stated_mean is None or not values:
            continue
        mean = math.fsum(values) / len(values)
        if not differ_little(mean, stated_mean):
            message = f"the mean latency is stated as {stated_mean:.6g} s, and the batches give {mean:.6g} s"
            finding = Finding("statistics-disagree", "warning", message, file, touches=("requests",))
            rows.findings.append(finding)
    return rows.content()


def read_vllm_throughput(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench throughput`: requests, tokens and the time they took."""
    rows = RequestRows("vllm_throughput", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        rows.stored += totals(document, _OFFLINE_TOTALS, benchmark)
    return rows.content()
