"""A report as Markdown: the same sections, numbers and tables; charts as their summaries and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import harmless, plain
from ccl_bench.report.page_model import TITLES, Quantity, Short, Term, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.page_model import (
        Page,
        PageSection,
        PageTable,
        Tile,
    )

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better"}
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~"} | {"&": "&amp;"})


def markdown(page: Page) -> str:
    """Return the whole report."""
    blocks = [f"# {escaped(page.title)}"]
    if page.verdict:
        if page.verdict.sentence:
            blocks.append(f"**{escaped(page.verdict.sentence)}**")
        causes = [
            f"{number}. {escaped(each.title)}: **{escaped(each.gain)}**. What to do: {escaped(each.remedy)} "
            f"(`ccl-bench diagnose --explain {each.diagnosis}`)."
            for number, each in enumerate(page.verdict.causes, start=1)
        ]
        if causes:
            blocks.append("\n".join(causes))
        blocks += map(escaped, page.verdict.remarks)
    blocks.append("\n".join(f"- {escaped(name)}: {escaped(text)}" for name, text in page.identity))

    if page.has_findings:
        blocks.append(f"## {TITLES['findings']}")
    blocks += [escaped(page.quality)] if page.quality else []
    lines = []
    for finding in page.findings:
        place = f"{escaped(finding.place)}: " if finding.place else ""
        code = f" ({escaped(finding.code)})" if finding.code else ""
        more = f" {finding.others:,} more like this." if finding.others else ""
        lines.append(f"- **{finding.severity}**: {place}{escaped(finding.message)}{code}{more}")
        if finding.fix:
            lines.append(f"    - What to do: {escaped(finding.fix)}")
    blocks += ["\n".join(lines)] if lines else []

    blocks.append(f"## {TITLES['headline']}")
    blocks.append(_numbers(page.headline) if page.headline else "No metric has a value for this run.")
    for section in page.sections:
        if not section.absent:
            blocks += _section(section)
    absent = [f"- **{escaped(each.title)}.** {escaped(each.absent)}" for each in page.sections if each.absent]
    if absent:
        blocks += [f"## {TITLES['not-shown']}", "\n".join(absent)]
    for section in page.appendix:
        blocks += _section(section)

    if page.definitions:
        blocks.append(f"## {TITLES['definitions']}")
    for each in page.definitions:
        blocks.append(f'<a id="{each.metric}"></a>\n\n### {escaped(each.metric)}')
        direction = _DIRECTIONS.get(each.better)
        facts = [each.unit, *([direction] if direction else []), f"revision {each.revision}"]
        blocks.append(escaped(", ".join(facts)))
        manual = each.manual.replace("```", "'''").strip()
        blocks.append(f"```text\n{manual}\n```")
    blocks.append(f"Made by {escaped(page.made_by)}.")
    return harmless("\n\n".join(blocks)) + "\n"


def _section(section: PageSection) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    if section.about:
        yield escaped(section.about)
    if section.numbers:
        yield _numbers(section.numbers)
    yield from map(escaped, section.notes)
    for drawing in section.drawings():
        yield f"### {escaped(drawing.title)}"
        yield escaped(" ".join(filter(None, (drawing.summary, drawing.note))))
        yield from _table(drawing.table)
    for table in section.tables:
        yield from _table(table)


def _numbers(numbers: Iterable[Tile]) -> str:
    rows = []
    for each in numbers:
        doubts = f"{each.doubts} finding{'s' if each.doubts > 1 else ''}" if each.doubts else ""
        rows.append(
            (
                f"[{escaped(each.label)}](#{each.metric})" if each.metric else escaped(each.label),
                escaped(each.quantity.text),
                _DIRECTIONS.get(each.better, ""),
                escaped("; ".join(filter(None, (each.note, doubts)))),
            )
        )
    return table_rows(("number", "value", "direction", ""), rows, {1})


def _table(table: PageTable) -> Iterator[str]:
    if table.caption:
        yield f"**{escaped(table.caption)}**"
    rows: list[list[str]] = []
    for row in table.rows:
        rows.append([])
        for cell in row:
            if isinstance(cell, Quantity | Short):
                rows[-1].append(escaped(cell.text))
            elif isinstance(cell, Term):
                rows[-1].append(f"[{escaped(cell.text or cell.metric)}](#{cell.metric})")
            elif isinstance(cell, Terms):
                rows[-1].append(", ".join(f"[{escaped(name)}](#{name})" for name in cell.metrics))
            else:
                rows[-1].append(escaped(cell))
    yield table_rows(table.columns, rows, table.numeric)
    if table.note:
        yield escaped(table.note)


def table_rows(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int]) -> str:
    """Return a table; cells are Markdown, the numeric columns are aligned to the right."""
    right = set(numeric)
    rule = ["---:" if place in right else "---" for place in range(len(head))]
    lines = [[escaped(title) for title in head], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Return untrusted text on one line, with the special characters of Markdown and HTML escaped."""
    return plain(text).translate(_SPECIAL)
