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
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.units import SECOND_NS
from ccl_bench.trace.formats.serving.json_values import (
    Impossible,
    finite,
    read_objects,
    seconds,
    text,
    tokens,
)
from ccl_bench.trace.formats.serving.requests import (
    TOLERANCE,
    Request,
    RequestRows,
    StoredStatistic,
    in_milliseconds,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_LISTS = ("ttfts", "itls", "input_lens", "output_lens", "errors", "start_times")
_TIMES = ("ttfts", "itls")
_TOTALS = {
    "duration": "duration",
    "completed": "completed",
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "request_goodput": "goodput",
    "request_goodput:": "goodput",
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
        lists = _lists(document, benchmark, file)
        if not any(name in lists for name in _TIMES):
            rows.unlisted(option)
            continue
        for index in range(len(next(iter(lists.values())))):
            entry = {name: values[index] for name, values in lists.items()}
            place = f"request {index}" + (f" of result {benchmark}" if benchmark else "")
            rows.add(place, partial(_request, entry, index, benchmark))
    return rows.content()


def _failures(document: dict[str, Any], benchmark: int) -> Iterator[StoredStatistic]:
    """Yield how many requests failed; older versions store only how many were asked for and succeeded."""
    failed, asked, completed = (finite(document.get(key)) for key in ("failed", "num_prompts", "completed"))
    if failed is None and asked is not None and completed is not None:
        failed = max(0.0, asked - completed)
    if failed is not None:
        yield StoredStatistic(benchmark, "failed", "total", failed)


def _lists(document: dict[str, Any], benchmark: int, file: str) -> dict[str, list[Any]]:
    """Return the lists of a result, which are of one length."""
    found = {name: document[name] for name in _LISTS if document.get(name) is not None}
    for name, values in found.items():
        if not isinstance(values, list):
            raise InputError("is not a list", where=f"{file}: {name} of result {benchmark}")
    found = {name: values for name, values in found.items() if values}
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        message = (
            f"the lists of result {benchmark} differ in length, so their entries cannot be assigned: {said}"
        )
        raise InputError(message, where=file, fix="copy the file again, or repeat the benchmark")
    return found


def _request(entry: dict[str, Any], index: int, benchmark: int) -> Request:
    """Return one request; of a failed one the tools record 0 as every length and time."""
    error = text(entry.get("errors"))
    if error or entry.get("output_lens") == 0:
        return Request(benchmark, str(index), "failed", error=error)
    ttft = seconds(entry.get("ttfts"), "ttft") or None  # 0 where the answer was not streamed
    gaps = _gaps(entry.get("itls"))
    latency = None if ttft is None or gaps is None else math.fsum([ttft, *gaps])
    start = finite(entry.get("start_times"))
    start_ns = None if start is None or not 0 <= start < SECOND_NS * 8 else round(start * SECOND_NS)
    return Request(
        benchmark,
        str(index),
        start_ns=start_ns,
        end_ns=None if start_ns is None or latency is None else start_ns + round(latency * SECOND_NS),
        ttft_s=ttft,
        latency_s=latency,
        input_tokens=tokens(entry.get("input_lens"), "input_len"),
        output_tokens=tokens(entry.get("output_lens"), "output_len"),
        gaps_s=gaps,
    )


def _gaps(values: object) -> list[float] | None:
    if values is None:
        return None
    if not isinstance(values, list):
        raise Impossible("itl is not a list")
    found = [seconds(value, f"itl {place}") for place, value in enumerate(values)]
    if None in found:
        raise Impossible("an itl is missing")
    return [gap for gap in found if gap is not None]


_OF_BATCHES = {"avg_latency": "mean", "std_latency": "std"}
_OFFLINE_TOTALS = {"num_requests": "completed", "elapsed_time": "duration", "total_num_tokens": "tokens"}


def read_vllm_latency(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench latency`: how long batches of requests took."""
    rows = RequestRows("vllm_latency", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        rows.stored += _of_batches(document, benchmark)
        listed = document.get("latencies")
        rows.findings += _disagreement(document, listed if isinstance(listed, list) else [], file)
    return rows.content()


def read_vllm_throughput(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench throughput`: requests, tokens and the time they took."""
    rows = RequestRows("vllm_throughput", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        rows.stored += totals(document, _OFFLINE_TOTALS, benchmark)
    return rows.content()


def _of_batches(document: dict[str, Any], benchmark: int) -> Iterator[StoredStatistic]:
    percentiles = document.get("percentiles")
    said = {statistic: document.get(key) for key, statistic in _OF_BATCHES.items()}
    if isinstance(percentiles, dict):
        said |= {f"p{share}": value for share, value in percentiles.items()}
    for statistic, value in said.items():
        number = finite(value)
        if number is not None:
            yield StoredStatistic(benchmark, "latency", statistic, number)


def _disagreement(document: dict[str, Any], listed: list[Any], file: str) -> list[Finding]:
    """Find a mean that the listed latencies do not give."""
    values = [number for each in listed if (number := finite(each)) is not None]
    said = finite(document.get("avg_latency"))
    if said is None or not values:
        return []
    own = math.fsum(values) / len(values)
    if abs(own - said) <= TOLERANCE * max(abs(own), abs(said)):
        return []
    message = f"the mean latency is stated as {said:.6g} s, and the batches give {own:.6g} s"
    return [Finding("statistics-disagree", "warning", message, file, touches=("requests",))]
