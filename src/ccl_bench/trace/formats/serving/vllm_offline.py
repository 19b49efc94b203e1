"""Results of vLLM's offline benchmarks, which drive an engine without a server and list no requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ccl_bench.base.findings import Finding
from ccl_bench.trace.formats.serving.documents import objects
from ccl_bench.trace.formats.serving.numbers import finite
from ccl_bench.trace.formats.serving.rows import Rows
from ccl_bench.trace.formats.serving.stored import TOLERANCE, Stored, totals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_OF_BATCHES = {"avg_latency": "mean", "std_latency": "std"}
_TOTALS = {"num_requests": "completed", "elapsed_time": "duration", "total_num_tokens": "tokens"}


def read_vllm_latency(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench latency`: how long batches of requests took."""
    rows = Rows("vllm_latency", file)
    for benchmark, document in enumerate(objects(stream, file)):
        rows.stored += _of_batches(document, benchmark)
        listed = document.get("latencies")
        rows.findings += _disagreement(document, listed if isinstance(listed, list) else [], file)
    return rows.content()


def read_vllm_throughput(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a result of `vllm bench throughput`: requests, tokens and the time they took."""
    rows = Rows("vllm_throughput", file)
    for benchmark, document in enumerate(objects(stream, file)):
        rows.stored += totals(document, _TOTALS, benchmark)
    return rows.content()


def _of_batches(document: dict[str, Any], benchmark: int) -> Iterator[Stored]:
    percentiles = document.get("percentiles")
    said = {statistic: document.get(key) for key, statistic in _OF_BATCHES.items()}
    if isinstance(percentiles, dict):
        said |= {f"p{share}": value for share, value in percentiles.items()}
    for statistic, value in said.items():
        number = finite(value)
        if number is not None:
            yield Stored(benchmark, "latency", statistic, number)


def _disagreement(document: dict[str, Any], listed: list[Any], file: str) -> list[Finding]:
    """Find a mean that the listed latencies do not give."""
    values = [number for each in listed if (number := finite(each)) is not None]
    said = finite(document.get("avg_latency"))
    if said is None or not values:
        return []
    own = math.fsum(values) / len(values)
    if abs(own - said) <= TOLERANCE * max(abs(own), abs(said)):
        return []
    message = f"the mean latency is said to be {said:.6g} s, and the batches give {own:.6g} s"
    return [Finding("statistics-disagree", "warning", message, file, touches=("requests",))]
