"""The page of one published run and its full report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.base.text import counted
from ccl_bench.leaderboard.bundle.format import CARD
from ccl_bench.leaderboard.pages.render import (
    hardware_text,
    name_and_version,
    number_cell,
    parallelism_text,
    render_page,
)
from ccl_bench.leaderboard.pages.titles import metric_title
from ccl_bench.leaderboard.store.query import default_columns
from ccl_bench.leaderboard.store.rows import known_metrics, unit_variants
from ccl_bench.report.formatting import size, with_unit
from ccl_bench.report.page import report_page
from ccl_bench.report.page_model import PageFinding
from ccl_bench.report.render.html import findings, run_page
from ccl_bench.report.results import STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.pages.render import Cell
    from ccl_bench.leaderboard.store.query_result import ListedRun
    from ccl_bench.result import Result


@dataclass(frozen=True, slots=True)
class ShownResult:
    """One result on the page."""

    result: Result
    cell: Cell
    text: str
    """The value with its unit."""
    is_known: bool
    """Whether this program has a definition of the metric."""


MOST_ROWS = 1000
"""Rows of one table on the page: a run may have 10,000 files, and `provenance.json` names all."""


def published_run_page(bundle: Bundle, listed: ListedRun, to: Links) -> str:
    """Return the page of a run; `listed` holds its row in the index and all its numbers."""
    run = listed.run
    by = f" by {run['submitter']}" if run["submitter"] else ""
    identity = {
        "hardware": hardware_text(run),
        "framework": name_and_version(run, "framework", "framework_version"),
        "parallelism": parallelism_text(run),
        "communication": name_and_version(run, "communication_library", "communication_version"),
        "run": run["name"],
        "submitted": f"{run['submitted_at'].replace('T', ' ').replace('Z', ' UTC')}{by}",
        "origin": f"signed with the key {run['signed_by']}" if run["signed_by"] else "unsigned",
        "measured with": f"ccl-bench {run['tool_version']}",
    }
    shown_results = [
        ShownResult(
            result,
            number_cell(result.metric, listed.numbers.get(result.metric)),
            with_unit(result.value, result.unit) if result.value is not None else "",
            result.metric in known_metrics(),
        )
        for result in sorted(bundle.results, key=lambda result: metric_title(result.metric).lower())
        if result.metric not in unit_variants()
    ]
    provenance = bundle.provenance
    measured = [each for each in shown_results if each.result.value is not None]
    by_name = {each.result.metric: each for each in measured}
    usual = default_columns().get(run["phase"] or "any", default_columns()["any"])
    return render_page(
        "run.html",
        f"{run['model'] or run['name']} on {hardware_text(run) or 'unknown hardware'}",
        to,
        at="runs",
        run=run,
        listed=listed,
        identity=[(name, text) for name, text in identity.items() if text],
        headline=[by_name[name] for name in usual if name in by_name],
        measured=measured,
        missing=[each for each in shown_results if each.result.value is None],
        status_words=STATUS_WORDS,
        findings=findings(run_findings) if (run_findings := _findings(bundle.results)) else "",
        fields=bundle.fields,
        description=bundle.card.value.description or "",
        card=bundle.text(CARD),
        provenance=provenance,
        environment=list(islice(provenance.environment.items(), MOST_ROWS)),
        traces=[(trace, size(trace.size)) for trace in provenance.traces[:MOST_ROWS]],
        other_files=list(islice(provenance.files.items(), MOST_ROWS)),
        more_files=sum(max(0, len(each) - MOST_ROWS) for each in (provenance.traces, provenance.files)),
        events=bundle.history,
        files=bundle.public_files,
    )


def _findings(results: Iterable[Result]) -> list[PageFinding]:
    """Return the findings about the data, the most severe first, with the count of affected numbers."""
    affected = Counter(
        key
        for result in results
        for key in {(f.severity, f.code, f.message, f.file) for f in result.findings}
    )
    ranks = {severity: rank for rank, severity in enumerate(("error", "warning", "note"))}
    # A stranger wrote the results, so that a severity may be any text.
    worst_first = sorted(affected.items(), key=lambda item: (ranks.get(item[0][0], 3), -item[1], item[0]))
    return [
        PageFinding(
            severity if severity in ranks else "note",
            f"{message} (affects {counted(count, 'number')})",
            file,
            code,
        )
        for (severity, code, message, file), count in worst_first
    ]


def full_report(bundle: Bundle, to: Links) -> str:
    """Return the report as a page that links back to the run."""
    try:
        page = report_page(bundle.report)
        back = [(to.run(bundle.id), "Back to the run")]
        return run_page(page, assets=to.asset("").rstrip("/"), before=back)
    except CclBenchError:
        raise
    except Exception as error:  # a stranger wrote the file: whatever it holds must not take the server down
        raise InputError(f"the report of this run cannot be rendered: {error}") from error
