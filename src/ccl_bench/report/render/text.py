"""A report as text, for a terminal, a pipe or a file: the same sections; charts as their summaries."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, plain
from ccl_bench.report.console import Fitted, Group, Text, aligned, bullet, heading, indented, to_text
from ccl_bench.report.inspection import severity_mark
from ccl_bench.report.page_model import TITLES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from rich.console import RenderableType

    from ccl_bench.report.page_model import (
        Page,
        PageFinding,
        PageSection,
        PageVerdict,
        Tile,
    )
    from ccl_bench.result.inspection import Inspection

COLUMNS = 100
"""Width of a page that is written to a file."""


def text(page: Page) -> str:
    """Return the page as text for a file."""
    return to_text(text_page(page), width=COLUMNS)


def text_page(page: Page) -> Group:
    """Return the page for a terminal or a pipe: titles at the left, contents indented."""
    parts: list[RenderableType] = [heading(f"CCL-Bench report: {plain(page.title)}")]
    if page.verdict:
        parts += [indented(verdict_block(page.verdict)), Text()]
    parts.append(
        indented(aligned(("", ""), [(Text(plain(name), "dim"), value) for name, value in page.identity]))
    )
    blocks: list[tuple[str, RenderableType]] = []
    quality = [Text(plain(page.quality))] if page.quality else []
    if page.has_findings:
        blocks.append((TITLES["findings"], Group(*quality, *map(_finding, page.findings))))
    first = _numbers(page.headline) if page.headline else Text("No metric has a value for this run.")
    blocks.append((TITLES["headline"], first))
    blocks += [(each.title, _section(each)) for each in page.sections if not each.absent]
    absent = [(each.title, each.absent) for each in page.sections if each.absent]
    if absent:
        blocks.append((TITLES["not-shown"], Fitted(("", ""), absent, wide=(1,))))
    blocks += [(each.title, _section(each)) for each in page.appendix]
    manual = Text("ccl-metrics --explain NAME prints the definition of a metric.")
    made_by = Text(f"Made by {plain(page.made_by)}.", "dim")
    if page.definitions:
        blocks.append((TITLES["definitions"], Group(manual, made_by)))
    for title, content in blocks:
        parts += [Text(), heading(plain(title)), indented(content)]
    return Group(*parts, *([] if page.definitions else [Text(), made_by]))


def verdict_block(verdict: PageVerdict) -> RenderableType:
    """Return the verdict: where the time of the step goes, and what to change."""
    parts: list[RenderableType] = [Text(plain(verdict.sentence), "bold")] if verdict.sentence else []
    for number, each in enumerate(verdict.causes, start=1):
        lines = [Text.assemble(plain(each.title), ": ", (plain(each.gain), "bold"))]
        lines.append(
            Text(f"fix: {plain(each.remedy)} (ccl-bench diagnose --explain {each.diagnosis})", "dim")
        )
        parts.append(bullet(Text(str(number), "bold"), lines))
    return Group(*parts, *(Text(plain(each), "dim") for each in verdict.remarks))


def _finding(finding: PageFinding) -> RenderableType:
    place = f"{plain(finding.place)}: " if finding.place else ""
    code = f" ({plain(finding.code)})" if finding.code else ""
    lines = [Text.assemble(f"{place}{plain(finding.message)}", (code, "dim"))]
    if finding.others:
        lines.append(Text(f"{finding.others:,} more like this", "dim"))
    if finding.fix:
        lines.append(Text(f"fix: {plain(finding.fix)}", "dim"))
    return bullet(severity_mark(finding.severity), lines)


def _section(section: PageSection) -> RenderableType:
    parts: list[RenderableType] = [Text(plain(section.about), "dim")] if section.about else []
    parts += [_numbers(section.numbers)] if section.numbers else []
    parts += [Text(plain(note)) for note in section.notes]
    for drawing in section.drawings():
        sentences = " ".join(filter(None, (drawing.summary, drawing.note)))
        parts.append(Text.assemble((f"{plain(drawing.title)}: ", "bold"), plain(sentences)))
    for table in section.tables:
        parts.append(Text())
        if table.caption:
            parts.append(Text(plain(table.caption), "bold"))
        first_rows = table.rows[: table.first or None]
        rows = [
            [cell if isinstance(cell, str) else cell.text or getattr(cell, "metric", "") for cell in row]
            for row in first_rows
        ]
        titles = [title.upper() for title in table.columns]
        parts.append(Fitted(titles, rows, right=table.numeric, wide=table.wide))
        if more := len(table.rows) - len(first_rows):
            parts.append(Text(f"{counted(more, 'more row')} in the other forms of the report", "dim"))
        if table.note:
            parts.append(Text(plain(table.note), "dim"))
    return Group(*parts)


def _numbers(numbers: Iterable[Tile]) -> RenderableType:
    rows = []
    for each in numbers:
        doubts = counted(each.doubts, "finding") if each.doubts else ""
        remarks = "; ".join(filter(None, (each.note, doubts)))
        rows.append((Text(plain(each.label), "dim"), each.quantity.text, remarks))
    return aligned(("", "", ""), rows)


_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


def text_report_name(inspection: Inspection, made_at: datetime) -> str:
    """Return `<timestamp>_<model>_dpXxY_tpZ_gpuN.txt`; X replicates weights, Y shards them.

    A pipeline adds `_ppP` after the tensor-parallel degree. A degree that no fact states is the size of the
    process groups along it. Unknown degrees are left out.
    """
    name = inspection.model or inspection.run.rstrip("/").rpartition("/")[2] or "run"
    parts = [f"{made_at:%Y%m%d_%H%M%S}", _UNSAFE.sub("_", name).strip("_.") or "run"]
    gpus = inspection.world_size or len(inspection.ranks)
    facts = {axis: inspection.facts.get(axis) for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")}
    sizes = {group.dimension: group.size or 0 for group in inspection.groups if group.users}
    degrees = {
        axis: fact.value if fact and isinstance(fact.value, int) else sizes.get(axis, 0)
        for axis, fact in facts.items()
    }
    if any(degrees.values()):
        # Without a degree of sharding, it is what the other degrees leave of the ranks.
        left = max(gpus // prod(degree or 1 for degree in degrees.values()), 1)
        shards = degrees["dp_shard"] or left
        parts += [f"dp{degrees['dp_replicate'] or 1}x{shards}", f"tp{degrees['tp'] or 1}"]
        parts += [f"pp{degrees['pp']}"] if degrees["pp"] > 1 else []
    return "_".join([*parts, f"gpu{gpus}"]) + ".txt"
