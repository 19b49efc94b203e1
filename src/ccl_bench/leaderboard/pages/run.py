"""The page of one published run: what ran, its numbers and findings, where they are from, its history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.defaults import default_columns
from ccl_bench.leaderboard.pages.frame import page
from ccl_bench.leaderboard.pages.words import cell, hardware, parallelism, versioned
from ccl_bench.leaderboard.store.bundle import CARD, PROVENANCE, REPORT, RESULTS
from ccl_bench.leaderboard.store.known import known_metrics, variants
from ccl_bench.report.formatting import counted, size, with_unit
from ccl_bench.report.page_model import Finding
from ccl_bench.report.render.html import findings
from ccl_bench.report.results import STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.pages.words import Cell
    from ccl_bench.leaderboard.store.answer import Listed
    from ccl_bench.leaderboard.store.bundle import Bundle
    from ccl_bench.result import Result

_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Shown:
    """One result on the page."""

    result: Result
    cell: Cell
    text: str
    """The value with its unit."""
    is_known: bool
    """Whether this program has a definition of the metric."""


def run_page(bundle: Bundle, listed: Listed, to: Links) -> str:
    """Return the page of a run; `listed` has its row in the index and all its numbers."""
    run = listed.run
    shown = _shown(bundle.results, listed)
    measured = [each for each in shown if each.result.value is not None]
    return page(
        "run.html",
        f"{run['model'] or run['name']} on {hardware(run) or 'unknown hardware'}",
        to,
        at="runs",
        run=run,
        listed=listed,
        identity=[(name, text) for name, text in _identity(run) if text],
        headline=_headline(measured, run["phase"]),
        measured=measured,
        missing=[each for each in shown if each.result.value is None],
        status_words=STATUS_WORDS,
        findings=findings(found) if (found := list(_findings(bundle.results))) else "",
        fields=bundle.fields,
        description=bundle.card.card.description or "",
        card=bundle.text(CARD),
        provenance=bundle.provenance,
        traces=[(trace, size(trace.size)) for trace in bundle.provenance.traces],
        events=bundle.history,
        files=[CARD, RESULTS, PROVENANCE, *([REPORT] if run["has_report"] else [])],
    )


def _identity(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "hardware", hardware(run)
    yield "framework", versioned(run, "framework", "framework_version")
    yield "parallelism", parallelism(run)
    yield "communication", versioned(run, "communication_library", "communication_version")
    yield "run", run["name"]
    by = f" by {run['submitter']}" if run["submitter"] else ""
    yield "submitted", f"{run['submitted_at'].replace('T', ' ').replace('Z', ' UTC')}{by}"
    yield "measured with", f"ccl-bench {run['tool_version']}"


def _shown(results: Iterable[Result], listed: Listed) -> list[Shown]:
    return [
        Shown(
            result,
            cell(result.metric, listed.numbers.get(result.metric)),
            with_unit(result.value, result.unit) if result.value is not None else "",
            result.metric in known_metrics(),
        )
        for result in sorted(results, key=lambda result: result.metric.lower())
        if result.metric not in variants()
    ]


def _headline(measured: list[Shown], phase: str | None) -> list[Shown]:
    wanted = default_columns(phase if phase in {"training", "inference"} else "any")
    by_name = {each.result.metric: each for each in measured}
    return [by_name[name] for name in wanted if name in by_name]


def _findings(results: Iterable[Result]) -> Iterator[Finding]:
    """Yield what is wrong with the data, the worst first; how many numbers it touches is told with it."""
    touched: Counter[tuple[str, str, str, str]] = Counter()
    for result in results:
        for found in {(f.severity, f.code, f.message, f.file) for f in result.findings}:
            touched[found] += 1
    for (severity, code, message, file), count in sorted(
        touched.items(), key=lambda item: (_rank(item[0][0]), -item[1], item[0])
    ):
        yield Finding(
            severity if severity in _SEVERITIES else "note",
            f"{message} (touches {counted(count, 'number')})",
            file,
            code,
        )


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
