"""The requests of a result while it is read: those that are possible, and a count of the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.serving.numbers import Impossible
from ccl_bench.trace.formats.serving.stored import Stored, disagreements, total

if TYPE_CHECKING:
    from collections.abc import Callable

_TOUCHES = ("requests",)
_SHOWN = 3

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
class Rows:
    """What is read of one file."""

    tool: str
    file: str
    requests: list[Request] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """For each request that is left out: where it stands, and why."""
    findings: list[Finding] = field(default_factory=list)

    def add(self, place: str, read: Callable[[], Request]) -> None:
        """Keep the request that `read` returns, unless it is impossible; `place` says where it stands."""
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
        statistics: dict[str, list[object]] = {
            entry.name: [asdict(s)[entry.name] for s in self.stored] for entry in fields(Stored)
        }
        statistics["tool"] = [self.tool] * len(self.stored)
        tables = {
            "requests": TABLES["requests"].frame(columns),
            "serving_statistics": TABLES["serving_statistics"].frame(statistics),
        }
        own = dict.fromkeys(self.findings)
        findings = [*own, *self._lost(), *self._failed(), *self._uncounted(), *self._disagreeing()]
        return TraceContent(tables, findings=findings, attributes={"serving_benchmark": self.tool})

    def unlisted(self, option: str) -> None:
        """Note that the file says nothing of single requests; `option` makes the tool write them."""
        message = f"only statistics are recorded; {option} records each request"
        self.findings.append(Finding("requests-not-listed", "warning", message, self.file, touches=_TOUCHES))

    def _lost(self) -> list[Finding]:
        if not self.lost:
            return []
        shown = "; ".join(self.lost[:_SHOWN]) + ("; ..." if len(self.lost) > _SHOWN else "")
        message = f"{len(self.lost)} requests are left out, being damaged or impossible: {shown}"
        return [Finding("requests-lost", "error", message, self.file, count=len(self.lost), touches=_TOUCHES)]

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
        """Find answers that came in more pieces than they are said to have tokens."""
        counted = [r for r in self.requests if r.gaps_s and r.output_tokens is not None]
        pieces = [(len(r.gaps_s or ()) + 1, r.output_tokens or 0) for r in counted]
        short = sum(found > tokens + _EXTRA_PIECES for found, tokens in pieces)
        if not short or short <= _MANY_UNCOUNTED * len(counted):
            return []
        message = (
            f"{short} of {len(counted)} answers came in more pieces than they are said to have tokens, "
            "as where nobody counted the tokens"
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


def _check(request: Request) -> None:
    if request.status != "ok":
        return
    ttft, latency = request.ttft_s, request.latency_s
    if ttft is not None and latency is not None and latency < ttft:
        raise Impossible(f"it ended after {latency:g} s, before its first token after {ttft:g} s")
    if request.output_tokens == 0:
        raise Impossible("it succeeded without output")
