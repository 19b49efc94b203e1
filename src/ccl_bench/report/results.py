"""Results as text: plain numbers, an aligned table, CSV, and remarks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, csv_lines, plain
from ccl_bench.report.formatting import exact, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from ccl_bench.report.console import Aligned
    from ccl_bench.result import Result, ResultFinding
    from ccl_bench.result.inspection import InspectedMetric

CSV_COLUMNS = ("metric", "value", "unit", "better", "status", "reason", "fix", "window", "ranks", "findings")
STATUS_WORDS = {
    "ok": "ok",
    "not_applicable": "not applicable",
    "not_measurable": "not measurable",
    "failed": "failed",
}
_STATUS_STYLES = {"ok": "dim", "not_applicable": "dim", "not_measurable": "yellow", "failed": "red"}
ALIKE = 2
"""Number of findings of one kind that are listed; the others are counted."""

_REASONS = 3
"""Number of reasons to name when metrics without a value are counted."""


def number(result: Result) -> str:
    """Return a result's value for programs, empty where there is none."""
    return "" if result.value is None else exact(result.value)


def values(results: Sequence[Result]) -> str:
    """Return the number of a single result alone, of several `name number` lines."""
    valued_results = [result for result in results if result.value is not None]
    if len(results) == 1:
        return "".join(f"{number(result)}\n" for result in valued_results)
    return "".join(f"{result.metric} {number(result)}\n" for result in valued_results)


def as_csv(results: Iterable[Result]) -> str:
    """Return results as CSV with a header."""
    rows = [
        (
            result.metric,
            number(result),
            result.unit,
            result.better,
            result.status,
            result.reason,
            result.fix,
            result.window,
            " ".join(map(str, result.ranks)),
            " ".join(dict.fromkeys(finding.code for finding in result.findings)),
        )
        for result in results
    ]
    return "".join(csv_lines([CSV_COLUMNS, *rows]))


def table(results: Iterable[Result]) -> Aligned:
    """Return results as a table, one row each, with the reason where there is no value."""
    from ccl_bench.report.console import Text, aligned

    rows = []
    for result in results:
        status = Text(STATUS_WORDS[result.status], _STATUS_STYLES[result.status])
        if result.value is None:
            status.append(f": {plain(result.reason)}", "default")
        elif touching := sum(finding.severity != "note" for finding in result.findings):
            status.append(f", {counted(touching, 'finding')}", "yellow")
        value = "-" if result.value is None else short(result.value)
        rows.append((result.metric, value, result.unit, status))
    return aligned(("METRIC", "VALUE", "UNIT", "STATUS"), rows, right=(1,))


@dataclass(frozen=True, slots=True)
class Refusals:
    """Metrics without a value for one and the same reason."""

    metrics: tuple[str, ...]
    status: str
    reason: str
    fix: str

    def __str__(self) -> str:
        """Return the names, the status and the reason on one line."""
        return f"{', '.join(self.metrics)}: {STATUS_WORDS[self.status]}: {self.reason}"


def refusals(answers: Iterable[Result | InspectedMetric], *, why: bool) -> list[Refusals]:
    """Return the metrics without a value by their reason; those for other kinds of runs only with `why`."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for answer in answers:
        if answer.status != "ok" and (why or not is_expected(answer)):
            names.setdefault((answer.status, answer.reason, answer.fix), []).append(answer.metric)
    return [Refusals(tuple(metrics), *cause) for cause, metrics in names.items()]


def every_metric(results: Sequence[Result], *, why: bool) -> RenderableType:
    """Return the table of the metrics with a value, and the others by their reason, a line each."""
    from ccl_bench.report.console import Group, Text, heading, indented

    missing = [indented(Text(plain(str(each)))) for each in refusals(results, why=why)]
    valued = [result for result in results if result.value is not None]
    parts: list[RenderableType] = [table(valued)] if valued else []
    if missing:
        parts += [*([Text()] if valued else []), heading("No value for"), *missing]
    return Group(*parts)


def is_expected(answer: Result | InspectedMetric) -> bool:
    """Whether a metric has no value because of the kind of run or the way it was recorded."""
    return answer.status in {"not_applicable", "not_measurable"} and not answer.is_repairable


def counts(answers: Sequence[Result | InspectedMetric]) -> str:
    """Return the number of metrics with a value and of those for other kinds of runs, by reason.

    Empty if none is for other kinds of runs. The most frequent reasons are named, each up to its colon,
    after which details of one metric follow.
    """
    reasons = Counter(answer.reason.partition(":")[0] for answer in answers if is_expected(answer))
    if not reasons:
        return ""
    measured = sum(answer.status == "ok" for answer in answers)
    frequent_reasons = reasons.most_common(_REASONS)
    clauses = [f"{count} because {reason}" for reason, count in frequent_reasons]
    if left := reasons.total() - sum(count for _, count in frequent_reasons):
        clauses.append(f"{left} for other reasons")
    head = f"{measured} measured, {reasons.total()} for other kinds of runs (--why lists them)"
    return f"{head}: {'; '.join(clauses)}"


def result_page(result: Result) -> RenderableType:
    """Return one result with its reason and fix, or with its findings."""
    from ccl_bench.report.console import Group, Text, heading, indented

    lines = (
        [f"{short(result.value)} {result.unit}"] if result.value is not None else refusal(result).splitlines()
    )
    lines += [f"steps: {result.window}"] if result.window else []
    lines += remarks([result])
    return Group(heading(result.metric), *(indented(Text(plain(line))) for line in lines))


def refusal(result: Result) -> str:
    """Return the reason why a result has no value, and on a second line the fix."""
    text = f"{result.metric}: {STATUS_WORDS[result.status]}: {result.reason}"
    return f"{text}\n  fix: {result.fix}" if result.fix else text


def remarks(results: Iterable[Result]) -> list[str]:
    """Return the findings about a printed number, one line each; many of one kind are counted.

    For a result without a value these are its possible causes: errors, and mistakes in files that people
    write, unless its reason states the same.
    """
    by_code: dict[str, dict[ResultFinding, None]] = {}  # In order, each once.
    for result in results:
        for finding in result.findings:
            may_be_cause = finding.severity == "error" or finding.code == "file-mistakes"
            if result.value is None and not (may_be_cause and finding.message != result.reason):
                continue
            by_code.setdefault(finding.code, {})[finding] = None
    lines = []
    for group in map(list, by_code.values()):
        listed_findings = group if len(group) <= ALIKE + 1 else group[:ALIKE]
        for finding in listed_findings:
            named = re.search(rf"(?<!\w){re.escape(finding.file)}(?!\w)", finding.message)
            place = f"{finding.file}: " if finding.file and not named else ""
            lines.append(plain(f"{finding.severity}: {place}{finding.message} ({finding.code})"))
        if len(group) > len(listed_findings):
            more = counted(len(group) - len(listed_findings), "more finding")
            lines.append(f"{group[0].severity}: {more} like this ({group[0].code})")
    return lines
