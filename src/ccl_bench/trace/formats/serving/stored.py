"""Statistics that a tool computed itself, and whether its list of requests gives the same."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.trace.formats.serving.numbers import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ccl_bench.trace.formats.serving.rows import Request

TOLERANCE = 1e-3
"""Share by which a mean may differ: where latency is put together from gaps, some microseconds lack."""

_IN_MILLISECONDS = re.compile(r"(mean|median|std|min|max|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_LATENCY = {"e2el", "e2e_latency"}
_STATISTICS = {"avg": "mean", "median": "p50", "stddev": "std"}


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of `serving_statistics`."""

    benchmark: int
    quantity: str
    statistic: str
    value: float


def total(stored: Iterable[Stored], quantity: str) -> float | None:
    """Return the sum over benchmarks of a number of which each has one; None where none says it."""
    said = [each.value for each in stored if (each.quantity, each.statistic) == (quantity, "total")]
    return math.fsum(said) if said else None


def statistic(name: str) -> str:
    """Return the one name of a statistic that tools call differently."""
    return _STATISTICS.get(name, name)


def in_milliseconds(document: Mapping[str, object], benchmark: int) -> Iterator[Stored]:
    """Yield the statistics in keys such as `mean_ttft_ms`."""
    for key, value in document.items():
        match = _IN_MILLISECONDS.fullmatch(key)
        number = finite(value)
        if match and number is not None:
            quantity = "latency" if match[2] in _LATENCY else match[2]
            yield Stored(benchmark, quantity, statistic(match[1]), number / 1000)


def totals(document: Mapping[str, object], names: Mapping[str, str], benchmark: int) -> Iterator[Stored]:
    """Yield the numbers of which there is one; `names` is key to quantity."""
    for key, quantity in names.items():
        number = finite(document.get(key))
        if number is not None:
            yield Stored(benchmark, quantity, "total", number)


def disagreements(requests: Sequence[Request], stored: Iterable[Stored]) -> Iterator[str]:
    """Yield what the tool said of all requests that its list of them does not give."""
    said = {(each.quantity, each.statistic): each.value for each in stored}
    completed = said.get(("completed", "total"))
    if completed is not None and completed != len(requests):
        yield f"{completed:g} requests are said to have succeeded, and {len(requests)} of those listed did"
    for quantity, values in _values(requests).items():
        mean = said.get((quantity, "mean"))
        if mean is None or not values:
            continue
        own = math.fsum(values) / len(values)
        if abs(own - mean) > TOLERANCE * max(abs(own), abs(mean)):
            yield f"the mean {quantity} is said to be {mean:.6g} s, and the requests give {own:.6g} s"


def _values(requests: Sequence[Request]) -> dict[str, list[float]]:
    return {
        "ttft": [r.ttft_s for r in requests if r.ttft_s is not None],
        "latency": [r.latency_s for r in requests if r.latency_s is not None],
        "itl": [gap for r in requests for gap in r.gaps_s or ()],
        "tpot": [tpot for r in requests if (tpot := _tpot(r)) is not None],
    }


def _tpot(request: Request) -> float | None:
    if request.latency_s is None or request.ttft_s is None or (request.output_tokens or 0) < 2:
        return None
    return (request.latency_s - request.ttft_s) / ((request.output_tokens or 0) - 1)
