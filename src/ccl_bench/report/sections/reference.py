"""Reference sections: every result, reasons for missing ones, facts and traces with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.report.context import cell, table
from ccl_bench.report.formatting import short, size, with_unit
from ccl_bench.report.page_model import ManualPage, PageSection, Quantity, Term, Terms
from ccl_bench.report.results import STATUS_WORDS, counts, refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.base.registry import Registry
    from ccl_bench.metrics import Metric
    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell
    from ccl_bench.result import Result

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "neither": "-"}


def reference(context: Context) -> Iterator[PageSection]:
    """Yield the non-empty sections."""
    results = list(context.results.values())
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        if result.value is not None:
            doubts = sum(finding.severity != "note" for finding in result.findings)
            rows.append(
                (
                    Term(result.metric),
                    Quantity(result.value, with_unit(result.value, result.unit)),
                    short(result.value),
                    result.unit,
                    _DIRECTIONS[result.better],
                    counted(doubts, "finding") if doubts else "-",
                    result.window or "-",
                )
            )
    head = ("metric", "value", "in its unit", "unit", "direction", "findings", "over")
    about = "Every metric that has a value. The names link to the definitions."
    result_table = table(head, rows, left=(0, 3, 4, 5, 6), wide=(6,))
    yield PageSection("all-results", "All results", about, tables=(result_table,))

    missing = [result for result in results if result.value is None]
    if missing:
        reasons = [
            (Terms(each.metrics), STATUS_WORDS[each.status], each.reason, each.fix or "-")
            for each in refusals(missing, why=context.why_all)
        ]
        tables = (table(("metrics", "status", "why", "fix"), reasons, left=range(4), wide=(0, 2, 3)),)
        counts_note = "" if context.why_all else counts(results)
        yield PageSection(
            "no-value",
            "No value for",
            "Why other metrics have no value." if reasons else "",
            tables=tables if reasons else (),
            notes=(f"{counts_note}.",) if counts_note else (),
        )

    if context.inspection.facts:
        facts = [
            (name, short(fact.value) if isinstance(fact.value, float) else str(fact.value), fact.source)
            for name, fact in context.inspection.facts.items()
        ]
        fact_table = table(("fact", "value", "from"), facts, left=range(3), wide=(1, 2))
        yield PageSection("facts", "Facts", "Facts about the run, with their sources.", tables=(fact_table,))

    if context.inspection.traces or context.inspection.files:
        yield _files(context)


def _files(context: Context) -> PageSection:
    hashes: dict[str, str] = {}
    for result in context.results.values():
        hashes |= {trace.file: trace.sha256 for trace in result.provenance.traces} | result.provenance.files
    traces = [
        (
            trace.file,
            "unknown" if trace.rank is None else str(trace.rank),
            trace.format if trace.is_readable else f"{trace.format}, unreadable",
            cell(trace.size_bytes, size),
            hashes.get(trace.file, "-"),
        )
        for trace in context.inspection.traces
    ]
    others = [
        (name, "-", kind, "-", hashes.get(name, "-")) for name, kind in context.inspection.files.items()
    ]
    head = ("file", "rank", "read as", "size", "SHA-256")
    file_table = table(head, [*traces, *others], left=(0, 2, 4))
    return PageSection("files", "Files", "The files behind the numbers.", tables=(file_table,))


def definitions(results: Iterable[Result], registry: Registry[Metric]) -> tuple[ManualPage, ...]:
    """Return the manual pages of the metrics that this installation has."""
    pages = []
    for result in results:
        if result.metric in registry:
            metric = registry.get(result.metric)
            pages.append(
                ManualPage(result.metric, metric.unit, metric.better, metric.revision, metric.manual)
            )
    return tuple(pages)
