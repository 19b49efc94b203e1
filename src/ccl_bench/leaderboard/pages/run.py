"""The page of one published run and its full report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.base.text import counted
from ccl_bench.leaderboard.bundle.format import CARD, REPORT
from ccl_bench.leaderboard.pages.render import (
    hardware_text,
    name_and_version,
    number_cell,
    parallelism_text,
    render_page,
)
from ccl_bench.leaderboard.store.query import default_columns
from ccl_bench.leaderboard.store.rows import known_metrics, unit_variants
from ccl_bench.report.formatting import size, with_unit
from ccl_bench.report.page import report_page
from ccl_bench.report.page_model import PageFinding
from ccl_bench.report.render.html import findings, run_page
from ccl_bench.report.results import STATUS_WORDS
from ccl_bench.result import report_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.pages.render import Cell
    from ccl_bench.leaderboard.store.query_result import ListedRun
    from ccl_bench.result import Result

_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class ShownResult:
    """One result on the page."""

    result: Result
    cell: Cell
    text: str
    """The value with its unit."""
    is_known: bool
    """Whether this program has a definition of the metric."""


def published_run_page(bundle: Bundle, listed: ListedRun, to: Links) -> str:
    """Return the page of a run; `listed` holds its row in the index and all its numbers."""
    run = listed.run
    shown_results = _shown_results(bundle.results, listed)
    measured = [each for each in shown_results if each.result.value is not None]
    return render_page(
        "run.html",
        f"{run['model'] or run['name']} on {hardware_text(run) or 'unknown hardware'}",
        to,
        at="runs",
        run=run,
        listed=listed,
        identity=[(name, text) for name, text in _identity(run) if text],
        headline=_headline(measured, run["phase"]),
        measured=measured,
        missing=[each for each in shown_results if each.result.value is None],
        status_words=STATUS_WORDS,
        findings=findings(run_findings) if (run_findings := list(_findings(bundle.results))) else "",
        fields=bundle.fields,
        description=bundle.card.value.description or "",
        card=bundle.text(CARD),
        provenance=bundle.provenance,
        traces=[(trace, size(trace.size)) for trace in bundle.provenance.traces],
        events=bundle.history,
        files=bundle.public_files,
    )


def _identity(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "hardware", hardware_text(run)
    yield "framework", name_and_version(run, "framework", "framework_version")
    yield "parallelism", parallelism_text(run)
    yield "communication", name_and_version(run, "communication_library", "communication_version")
    yield "run", run["name"]
    by = f" by {run['submitter']}" if run["submitter"] else ""
    yield "submitted", f"{run['submitted_at'].replace('T', ' ').replace('Z', ' UTC')}{by}"
    yield "origin", f"signed with the key {run['signed_by']}" if run["signed_by"] else "unsigned"
    yield "measured with", f"ccl-bench {run['tool_version']}"


def _shown_results(results: Iterable[Result], listed: ListedRun) -> list[ShownResult]:
    return [
        ShownResult(
            result,
            number_cell(result.metric, listed.numbers.get(result.metric)),
            with_unit(result.value, result.unit) if result.value is not None else "",
            result.metric in known_metrics(),
        )
        for result in sorted(results, key=lambda result: result.metric.lower())
        if result.metric not in unit_variants()
    ]


def _headline(measured: list[ShownResult], phase: str | None) -> list[ShownResult]:
    names = default_columns(phase if phase in {"training", "inference"} else "any")
    by_name = {each.result.metric: each for each in measured}
    return [by_name[name] for name in names if name in by_name]


def _findings(results: Iterable[Result]) -> Iterator[PageFinding]:
    """Yield the findings about the data, the most severe first, with the count of affected numbers."""
    touched: Counter[tuple[str, str, str, str]] = Counter()
    for result in results:
        for key in {(f.severity, f.code, f.message, f.file) for f in result.findings}:
            touched[key] += 1
    for (severity, code, message, file), count in sorted(
        touched.items(), key=lambda item: (_severity_rank(item[0][0]), -item[1], item[0])
    ):
        yield PageFinding(
            severity if severity in _SEVERITIES else "note",
            f"{message} (affects {counted(count, 'number')})",
            file,
            code,
        )


def _severity_rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


def full_report(bundle: Bundle, to: Links) -> str:
    """Return the report as a page that links back to the run."""
    return _render_report(bundle.folder / REPORT, to.asset("").rstrip("/"), to.run(bundle.id))


@lru_cache(maxsize=16)
def _render_report(path: Path, assets: str, run: str) -> str:
    if not path.exists():
        raise InputError("this run was published without a report")
    try:
        page = report_page(report_data.from_json(path.read_bytes()))
        return run_page(page, assets=assets, before=[(run, "Back to the run")])
    except CclBenchError:
        raise
    except Exception as error:  # a stranger wrote the file: whatever it holds must not take the server down
        raise InputError(f"the report of this run cannot be rendered: {error}") from error
