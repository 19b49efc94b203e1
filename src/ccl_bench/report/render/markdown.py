"""A report as Markdown: the same sections, numbers and tables; charts as their summaries and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.formatting import plain
from ccl_bench.report.page_model import TITLES, Quantity, Short, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.page_model import (
        Cell,
        Chart,
        Definition,
        Finding,
        Number,
        Page,
        Section,
        Strip,
        Table,
        Verdict,
    )

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better"}
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~"} | {"&": "&amp;"})


def markdown(page: Page) -> str:
    """Return the whole report."""
    blocks = [f"# {_text(page.title)}", *(_verdict(page.verdict) if page.verdict else ())]
    blocks += [*_identity(page.identity), f"## {TITLES['findings']}"]
    blocks += [_text(page.quality)] if page.quality else []
    blocks += _findings(page.findings) if page.findings else []
    blocks += [f"## {TITLES['headline']}"]
    blocks += [_numbers(page.headline)] if page.headline else ["No metric has a value for this run."]
    for section in page.sections:
        if not section.absent:
            blocks += _section(section)
    absent = [f"- **{_text(each.title)}.** {_text(each.absent)}" for each in page.sections if each.absent]
    if absent:
        blocks += [f"## {TITLES['not-shown']}", "\n".join(absent)]
    for section in page.appendix:
        blocks += _section(section)
    blocks += [
        f"## {TITLES['definitions']}",
        *_definitions(page.definitions),
        f"Made by {_text(page.made_by)}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _verdict(found: Verdict) -> Iterator[str]:
    if found.sentence:
        yield f"**{_text(found.sentence)}**"
    causes = [
        f"{number}. {_text(each.title)}: **{_text(each.gain)}**. What to do: {_text(each.remedy)} "
        f"(`ccl-bench diagnose --explain {each.diagnosis}`)."
        for number, each in enumerate(found.causes, start=1)
    ]
    if causes:
        yield "\n".join(causes)
    yield from map(_text, found.remarks)


def _identity(rows: Iterable[tuple[str, str]]) -> list[str]:
    return ["\n".join(f"- {_text(name)}: {_text(text)}" for name, text in rows)]


def _findings(found: Iterable[Finding]) -> list[str]:
    return ["\n".join(line for finding in found for line in _finding(finding))]


def _finding(finding: Finding) -> Iterator[str]:
    place = f"{_text(finding.place)}: " if finding.place else ""
    code = f" ({_text(finding.code)})" if finding.code else ""
    more = f" {finding.others:,} more like this." if finding.others else ""
    yield f"- **{finding.severity}**: {place}{_text(finding.message)}{code}{more}"
    if finding.fix:
        yield f"    - What to do: {_text(finding.fix)}"


def _section(section: Section) -> Iterator[str]:
    yield f"## {_text(section.title)}"
    if section.about:
        yield _text(section.about)
    if section.numbers:
        yield _numbers(section.numbers)
    yield from map(_text, section.notes)
    for drawn in section.drawings():
        yield from _chart(drawn)
    for table in section.tables:
        yield from _table(table)


def _chart(chart: Chart | Strip) -> Iterator[str]:
    yield f"### {_text(chart.title)}"
    yield _text(" ".join(filter(None, (chart.summary, chart.note))))
    yield from _table(chart.table)


def _numbers(numbers: Iterable[Number]) -> str:
    rows = [
        (
            f"[{_text(each.label)}](#{each.metric})" if each.metric else _text(each.label),
            _text(each.quantity.text),
            _DIRECTIONS.get(each.better, ""),
            _text(_remarks(each)),
        )
        for each in numbers
    ]
    return _rows(("number", "value", "direction", ""), rows, {1})


def _remarks(number: Number) -> str:
    doubts = f"{number.doubts} finding{'s' if number.doubts > 1 else ''}" if number.doubts else ""
    return "; ".join(filter(None, (number.note, doubts)))


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield f"**{_text(table.caption)}**"
    yield _rows(table.columns, [[_cell(cell) for cell in row] for row in table.rows], table.numeric)
    if table.note:
        yield _text(table.note)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int]) -> str:
    right = set(numeric)
    rule = ["---:" if place in right else "---" for place in range(len(head))]
    lines = [[_text(title) for title in head], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Quantity | Short):
        return _text(cell.text)
    if isinstance(cell, Term):
        return f"[{_text(cell.text or cell.metric)}](#{cell.metric})"
    return _text(cell)


def _definitions(found: Iterable[Definition]) -> Iterator[str]:
    for each in found:
        yield f'<a id="{each.metric}"></a>\n\n### {_text(each.metric)}'
        direction = _DIRECTIONS.get(each.better)
        facts = [each.unit, *([direction] if direction else []), f"revision {each.revision}"]
        yield _text(", ".join(facts))
        yield "```text\n" + each.manual.replace("```", "'''").strip() + "\n```"


def _text(text: str) -> str:
    """Return text of any origin on one line, with everything that Markdown or HTML would act on escaped."""
    return plain(text).translate(_SPECIAL)
