"""A report as Markdown: the same sections, numbers and tables; charts as their summaries and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.formatting import plain
from ccl_bench.report.page_model import TITLES, Quantity, Short, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.page_model import (
        Cell,
        ManualPage,
        Page,
        PageChart,
        PageFinding,
        PageSection,
        PageStrip,
        PageTable,
        PageVerdict,
        Tile,
    )

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better"}
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~"} | {"&": "&amp;"})


def markdown(page: Page) -> str:
    """Return the whole report."""
    blocks = [f"# {escaped(page.title)}", *(_verdict(page.verdict) if page.verdict else ())]
    blocks += [*_identity(page.identity), f"## {TITLES['findings']}"]
    blocks += [escaped(page.quality)] if page.quality else []
    blocks += _findings(page.findings) if page.findings else []
    blocks += [f"## {TITLES['headline']}"]
    blocks += [_numbers(page.headline)] if page.headline else ["No metric has a value for this run."]
    for section in page.sections:
        if not section.absent:
            blocks += _section(section)
    absent = [f"- **{escaped(each.title)}.** {escaped(each.absent)}" for each in page.sections if each.absent]
    if absent:
        blocks += [f"## {TITLES['not-shown']}", "\n".join(absent)]
    for section in page.appendix:
        blocks += _section(section)
    blocks += [
        f"## {TITLES['definitions']}",
        *_definitions(page.definitions),
        f"Made by {escaped(page.made_by)}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _verdict(verdict: PageVerdict) -> Iterator[str]:
    if verdict.sentence:
        yield f"**{escaped(verdict.sentence)}**"
    causes = [
        f"{number}. {escaped(each.title)}: **{escaped(each.gain)}**. What to do: {escaped(each.remedy)} "
        f"(`ccl-bench diagnose --explain {each.diagnosis}`)."
        for number, each in enumerate(verdict.causes, start=1)
    ]
    if causes:
        yield "\n".join(causes)
    yield from map(escaped, verdict.remarks)


def _identity(rows: Iterable[tuple[str, str]]) -> list[str]:
    return ["\n".join(f"- {escaped(name)}: {escaped(text)}" for name, text in rows)]


def _findings(findings: Iterable[PageFinding]) -> list[str]:
    return ["\n".join(line for finding in findings for line in _finding(finding))]


def _finding(finding: PageFinding) -> Iterator[str]:
    place = f"{escaped(finding.place)}: " if finding.place else ""
    code = f" ({escaped(finding.code)})" if finding.code else ""
    more = f" {finding.others:,} more like this." if finding.others else ""
    yield f"- **{finding.severity}**: {place}{escaped(finding.message)}{code}{more}"
    if finding.fix:
        yield f"    - What to do: {escaped(finding.fix)}"


def _section(section: PageSection) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    if section.about:
        yield escaped(section.about)
    if section.numbers:
        yield _numbers(section.numbers)
    yield from map(escaped, section.notes)
    for drawn in section.drawings():
        yield from _chart(drawn)
    for table in section.tables:
        yield from _table(table)


def _chart(chart: PageChart | PageStrip) -> Iterator[str]:
    yield f"### {escaped(chart.title)}"
    yield escaped(" ".join(filter(None, (chart.summary, chart.note))))
    yield from _table(chart.table)


def _numbers(numbers: Iterable[Tile]) -> str:
    rows = [
        (
            f"[{escaped(each.label)}](#{each.metric})" if each.metric else escaped(each.label),
            escaped(each.quantity.text),
            _DIRECTIONS.get(each.better, ""),
            escaped(_remarks(each)),
        )
        for each in numbers
    ]
    return table_rows(("number", "value", "direction", ""), rows, {1})


def _remarks(number: Tile) -> str:
    doubts = f"{number.doubts} finding{'s' if number.doubts > 1 else ''}" if number.doubts else ""
    return "; ".join(filter(None, (number.note, doubts)))


def _table(table: PageTable) -> Iterator[str]:
    if table.caption:
        yield f"**{escaped(table.caption)}**"
    yield table_rows(table.columns, [[_cell(cell) for cell in row] for row in table.rows], table.numeric)
    if table.note:
        yield escaped(table.note)


def table_rows(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int]) -> str:
    """Return a table; cells are Markdown, the numeric columns are aligned to the right."""
    right = set(numeric)
    rule = ["---:" if place in right else "---" for place in range(len(head))]
    lines = [[escaped(title) for title in head], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Quantity | Short):
        return escaped(cell.text)
    if isinstance(cell, Term):
        return f"[{escaped(cell.text or cell.metric)}](#{cell.metric})"
    return escaped(cell)


def _definitions(definitions: Iterable[ManualPage]) -> Iterator[str]:
    for each in definitions:
        yield f'<a id="{each.metric}"></a>\n\n### {escaped(each.metric)}'
        direction = _DIRECTIONS.get(each.better)
        facts = [each.unit, *([direction] if direction else []), f"revision {each.revision}"]
        yield escaped(", ".join(facts))
        yield "```text\n" + each.manual.replace("```", "'''").strip() + "\n```"


def escaped(text: str) -> str:
    """Return untrusted text on one line, with the special characters of Markdown and HTML escaped."""
    return plain(text).translate(_SPECIAL)
