"""The requests of a result while it is read, and whether the tool's own statistics agree with them."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from ccl_bench.base.counting import counted
from ccl_bench.base.findings import Finding
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.serving.json_values import LONGEST_S, Impossible, finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_TOUCHES = ("requests",)
_SHOWN = 3

_TIMES = frozenset({"ttft", "tpot", "itl", "latency", "duration"})
_MOST = 1e18
"""Above every sum of tokens."""

_FAILED = "failed"
_MANY_FAILED = 0.1
"""Share of failed requests above which the others say little of the server under this load."""

_EXTRA_PIECES = 2
"""Pieces of an answer without a token that servers send: one that names the role, one that ends it."""
_MANY_UNCOUNTED = 0.05
"""Share of answers with more pieces than tokens above which the tokens were not counted."""


@dataclass(slots=True)
class Request:
    """One row of `requests`."""

    benchmark: int
    request: str
    status: str = "ok"
    start_ns: int | None = None
    end_ns: int | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    own_tpot_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    gaps_s: list[float] | None = None
    error: str = ""


@dataclass(slots=True)
class RequestRows:
    """What is read of one file."""

    tool: str
    file: str
    requests: list[Request] = field(default_factory=list)
    stored: list[StoredStatistic] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """For each request that is left out: its position, and the reason."""
    findings: list[Finding] = field(default_factory=list)

    def add(self, place: str, read: Callable[[], Request]) -> None:
        """Keep the request that `read` returns, unless it is impossible; `place` states its position."""
        memory.hold_rows("requests", 1)
        try:
            request = read()
            _check(request)
        except Impossible as error:
            self.lost.append(f"{place}: {error}")
        else:
            self.requests.append(request)

    def content(self) -> TraceContent:
        """Return the tables and findings of the file."""
        names = [entry.name for entry in fields(Request)]
        columns: dict[str, list[object]] = {name: [getattr(r, name) for r in self.requests] for name in names}
        columns["tool"] = [self.tool] * len(self.requests)
        impossible = [found for found in self.stored if not _is_possible(found)]
        self.stored = [found for found in self.stored if _is_possible(found)]
        statistics: dict[str, list[object]] = {
            entry.name: [asdict(s)[entry.name] for s in self.stored] for entry in fields(StoredStatistic)
        }
        statistics["tool"] = [self.tool] * len(self.stored)
        tables = {
            "requests": TABLES["requests"].frame(columns),
            "serving_statistics": TABLES["serving_statistics"].frame(statistics),
        }
        own = dict.fromkeys(self.findings)
        findings = [
            *own,
            *self._impossible(impossible),
            *self._lost(),
            *self._failed(),
            *self._uncounted(),
            *self._disagreeing(),
        ]
        return TraceContent(tables, findings=findings, attributes={"serving_benchmark": self.tool})

    def unlisted(self, option: str) -> None:
        """Note that the file says nothing of single requests; `option` makes the tool write them."""
        message = f"only statistics are recorded; {option} records each request"
        self.findings.append(Finding("requests-not-listed", "warning", message, self.file, touches=_TOUCHES))

    def _lost(self) -> list[Finding]:
        if not self.lost:
            return []
        shown = "; ".join(self.lost[:_SHOWN]) + ("; ..." if len(self.lost) > _SHOWN else "")
        message = f"left out as damaged or impossible: {counted(len(self.lost), 'request')}: {shown}"
        return [Finding("requests-lost", "error", message, self.file, count=len(self.lost), touches=_TOUCHES)]

    def _impossible(self, statistics: list[StoredStatistic]) -> list[Finding]:
        named = (f"{each.quantity} ({each.statistic}) is {each.value:g}" for each in statistics)
        message = f"statistics that no benchmark can measure are left out: {', '.join(named)}"
        finding = Finding(
            "statistics-impossible", "error", message, self.file, count=len(statistics), touches=_TOUCHES
        )
        return [finding] if statistics else []

    def _failed(self) -> list[Finding]:
        count, sent = self._failures()
        if not count:
            return []
        share = count / sent
        why = next(
            (f", the first with: {r.error[:80]}" for r in self.requests if r.status == _FAILED and r.error),
            "",
        )
        message = f"{count} of {sent} requests failed ({100 * share:.3g} %){why}; they are in no mean"
        severity = "error" if share > _MANY_FAILED else "warning"
        return [Finding("requests-failed", severity, message, self.file, count=count, touches=_TOUCHES)]

    def _failures(self) -> tuple[int, int]:
        """Return how many requests failed, of how many, as listed, else as the tool counted them."""
        if self.requests:
            sent = [request.status for request in self.requests if request.status != "warmup"]
            return sent.count(_FAILED), len(sent)
        failed, others = total(self.stored, _FAILED), ("completed", "cancelled")
        if not failed:
            return 0, 0
        return round(failed), round(failed + sum(total(self.stored, name) or 0 for name in others))

    def _uncounted(self) -> list[Finding]:
        """Find answers that came in more pieces than their stated number of tokens."""
        counted = [r for r in self.requests if r.gaps_s and r.output_tokens is not None]
        pieces = [(len(r.gaps_s or ()) + 1, r.output_tokens or 0) for r in counted]
        short = sum(found > tokens + _EXTRA_PIECES for found, tokens in pieces)
        if not short or short <= _MANY_UNCOUNTED * len(counted):
            return []
        message = (
            f"{short} of {len(counted)} answers came in more pieces than their stated tokens, so tokens "
            "were probably not counted"
        )
        return [Finding("tokens-uncounted", "error", message, self.file, count=short, touches=_TOUCHES)]

    def _disagreeing(self) -> list[Finding]:
        found: list[str] = []
        for benchmark in dict.fromkeys(request.benchmark for request in self.requests):
            mine = [r for r in self.requests if r.benchmark == benchmark and r.status == "ok"]
            said = [s for s in self.stored if s.benchmark == benchmark]
            found += disagreements(mine, said)
        return [
            Finding("statistics-disagree", "warning", message, self.file, touches=_TOUCHES)
            for message in found
        ]


def _is_possible(found: StoredStatistic) -> bool:
    """Whether a statistic lies between 0 and what its quantity can reach; a benchmark takes some time."""
    if found.quantity == "duration":
        return 0 < found.value <= LONGEST_S
    return 0 <= found.value <= (LONGEST_S if found.quantity in _TIMES else _MOST)


def _check(request: Request) -> None:
    if request.status != "ok":
        return
    ttft, latency = request.ttft_s, request.latency_s
    if ttft is not None and latency is not None and latency < ttft:
        raise Impossible(f"it ended after {latency:g} s, before its first token after {ttft:g} s")
    if request.output_tokens == 0:
        raise Impossible("it succeeded without output")


TOLERANCE = 1e-3
"""Share by which a mean may differ: where latency is put together from gaps, some microseconds lack."""

_IN_MILLISECONDS = re.compile(r"(mean|median|std|min|max|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_LATENCY = {"e2el", "e2e_latency"}
_STATISTICS = {"avg": "mean", "median": "p50", "stddev": "std"}


@dataclass(frozen=True, slots=True)
class StoredStatistic:
    """One row of `serving_statistics`."""

    benchmark: int
    quantity: str
    statistic: str
    value: float


def total(stored: Iterable[StoredStatistic], quantity: str) -> float | None:
    """Return the sum over benchmarks of a number of which each has one; None where none says it."""
    said = [each.value for each in stored if (each.quantity, each.statistic) == (quantity, "total")]
    return math.fsum(said) if said else None


def statistic(name: str) -> str:
    """Return the one name of a statistic that tools call differently."""
    return _STATISTICS.get(name, name)


def in_milliseconds(document: Mapping[str, object], benchmark: int) -> Iterator[StoredStatistic]:
    """Yield the statistics in keys such as `mean_ttft_ms`."""
    for key, value in document.items():
        match = _IN_MILLISECONDS.fullmatch(key)
        number = finite(value)
        if match and number is not None:
            quantity = "latency" if match[2] in _LATENCY else match[2]
            yield StoredStatistic(benchmark, quantity, statistic(match[1]), number / 1000)


def totals(
    document: Mapping[str, object], names: Mapping[str, str], benchmark: int
) -> Iterator[StoredStatistic]:
    """Yield the numbers of which there is one; `names` is key to quantity."""
    for key, quantity in names.items():
        number = finite(document.get(key))
        if number is not None:
            yield StoredStatistic(benchmark, quantity, "total", number)


def disagreements(requests: Sequence[Request], stored: Iterable[StoredStatistic]) -> Iterator[str]:
    """Yield what the tool said of all requests that its list of them does not give."""
    said = {(each.quantity, each.statistic): each.value for each in stored}
    completed = said.get(("completed", "total"))
    if completed is not None and completed != len(requests):
        yield f"{completed:g} requests succeeded by the tool's count, and {len(requests)} by the list"
    for quantity, values in _values(requests).items():
        mean = said.get((quantity, "mean"))
        if mean is None or not values:
            continue
        own = math.fsum(values) / len(values)
        if abs(own - mean) > TOLERANCE * max(abs(own), abs(mean)):
            yield f"the mean {quantity} is stated as {mean:.6g} s, and the requests give {own:.6g} s"


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
