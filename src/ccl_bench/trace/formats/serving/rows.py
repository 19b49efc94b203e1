"""The requests of a result while it is read: those that are possible, and a count of the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from ccl_bench.findings import Finding
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.serving.numbers import Impossible
from ccl_bench.trace.formats.serving.stored import Stored, disagreements

if TYPE_CHECKING:
    from collections.abc import Callable

_TOUCHES = ("requests",)
_SHOWN = 3


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
        findings = [*self.findings, *self._lost(), *self._failed(), *self._disagreeing()]
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
        failed = [request for request in self.requests if request.status == "failed"]
        if not failed:
            return []
        why = next((f", the first with: {r.error[:80]}" for r in failed if r.error), "")
        message = f"{len(failed)} of {len(self.requests)} requests failed{why}; they are in no mean"
        return [
            Finding("requests-failed", "warning", message, self.file, count=len(failed), touches=_TOUCHES)
        ]

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
