"""A page as flat tables for spreadsheets: numbers without digits lost, in one unit a column."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ccl_bench.report.page_model import TITLES, Cell, PageTable, Quantity, Short, Term, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.page_model import Page, PageSection, Tile

FlatCell = str | float | Term
"""A text, a number, or the name of a metric that the page defines."""

_TEXT = re.compile(r"([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(?: ?([^\s\d(][^\s(]*))?(?: \(.*\))?")
"""A number with thousands separators, its unit, and remarks in brackets."""
_BASE = {
    **dict.fromkeys(("s", "ms", "µs", "ns"), "s"),
    **dict.fromkeys(("B", "kB", "MB", "GB", "TB"), "B"),
}
_SCALE = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_SCALE |= {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNIT_OF = "unit of"
"""Begins the head of a column of units."""
_EXACT_INTEGERS = 2.0**53
_ROUNDED = 0.05
"""Share by which a text may differ from its value: two digits, as 1.0 for 1.05, are the fewest."""


@dataclass(frozen=True, slots=True)
class FlatTable:
    """One table: its heads state the units of numbers."""

    key: str
    """Name of its file, from that of its section."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[FlatCell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class FlatSection:
    """The tables of one section."""

    key: str
    title: str
    about: tuple[str, ...]
    """How to read it, and observations, in sentences."""
    tables: tuple[FlatTable, ...]


def flat_sections(page: Page) -> tuple[FlatSection, ...]:
    """Return the sections of a page that have a table, in order; the first has its headline."""
    verdict = page.verdict
    first = [_tiles("headline", page.headline)] if page.headline else []
    causes = (
        [(each.title, each.gain, each.remedy, each.diagnosis) for each in verdict.causes] if verdict else []
    )
    if causes:
        columns = ("what costs time", "gain", "what to do", "diagnosis")
        first.append(FlatTable("diagnoses", "What to change", columns, tuple(causes)))
    first.append(FlatTable("identity", "The run", ("fact", "value"), page.identity))
    about = (verdict.sentence, *verdict.remarks) if verdict else ()
    sections = [FlatSection("headline", TITLES["headline"], tuple(filter(None, about)), tuple(first))]
    if page.findings:
        heads = ("severity", "finding", "place", "code", "what to do", "more like it")
        rows = ((f.severity, f.message, f.place, f.code, f.fix, f.others) for f in page.findings)
        table = FlatTable("findings", "", heads, tuple(rows))
        sections.append(FlatSection("findings", TITLES["findings"], (), (table,)))
    sections += filter(None, map(_section, (*page.sections, *page.appendix)))
    return tuple(sections)


def _section(section: PageSection) -> FlatSection | None:
    drawings = [(each.title, each.table, each.note) for each in section.drawings()]
    others = [(table.caption, table, table.note) for table in section.tables]
    tables = [_tiles(section.key, section.numbers)] if section.numbers else []
    for caption, table, note in (*drawings, *others):
        for rows in _of_one_unit(table):
            key = f"{section.key}-{len(tables) + 1}" if tables else section.key
            tables.append(_flat(key, caption, replace(table, rows=rows), note))
    about = tuple(filter(None, (section.about, *section.notes)))
    return FlatSection(section.key, section.title, about, tuple(tables)) if tables else None


def _tiles(key: str, tiles: Iterable[Tile]) -> FlatTable:
    rows = []
    for tile in tiles:
        value, unit = _with_unit(tile.quantity)
        name: FlatCell = Term(tile.metric, tile.label) if tile.metric else tile.label
        rows.append((name, value, unit, tile.metric, tile.better, tile.note, tile.doubts))
    columns = ("number", "value", "unit", "metric", "better", "note", "findings")
    return FlatTable(key, "Numbers", columns, tuple(rows))


def _of_one_unit(table: PageTable) -> list[tuple[tuple[Cell, ...], ...]]:
    """Return the rows of a table, the last apart if it alone has other units, as that of mean shares."""
    whole, *parts = (replace(table, rows=rows) for rows in (table.rows, table.rows[:-1], table.rows[-1:]))
    is_mixed, *are_mixed = (_UNIT_OF in "".join(_flat("", "", each, "").columns) for each in (whole, *parts))
    return (
        [each.rows for each in parts]
        if is_mixed and not any(are_mixed) and len(table.rows) > 2
        else [table.rows]
    )


def _flat(key: str, caption: str, table: PageTable, note: str) -> FlatTable:
    columns: list[str] = []
    cells: list[Sequence[FlatCell]] = []
    for place, title in enumerate(table.columns):
        column = [row[place] for row in table.rows]
        pairs = [_number(cell, is_numeric=_is_numeric(column)) for cell in column]
        # A zero has any unit of its kind.
        units = {unit for value, unit in pairs if value != 0 and isinstance(value, int | float)}
        units = units or {unit for value, unit in pairs if isinstance(value, int | float)}
        unit = next(iter(units)) if len(units) == 1 else ""
        columns.append(f"{title} [{unit}]" if unit else title)
        cells.append([value for value, _ in pairs])
        if len(units) > 1:
            columns.append(f"{_UNIT_OF} {title}")
            cells.append([unit for _, unit in pairs])
    return FlatTable(key, caption, tuple(columns), tuple(zip(*cells, strict=True)), note)


def _is_numeric(column: Sequence[Cell]) -> bool:
    """Whether the texts of a column are numbers, apart from signs for none."""
    texts = [cell for cell in column if isinstance(cell, str) and cell not in {"", "-"}]
    return bool(texts) and all(map(_is_number, texts))


def _is_number(text: str) -> bool:
    match = _TEXT.fullmatch(text)
    return match is not None and match[2] in {None, "%", *_SCALE} and not re.match(r"0\d", text)


def _number(cell: Cell, *, is_numeric: bool) -> tuple[FlatCell, str]:
    """Return a cell as a number with its unit, or as a text."""
    if isinstance(cell, Quantity):
        return _with_unit(cell)
    if isinstance(cell, Term):
        return cell, ""
    if isinstance(cell, Short):
        return cell.full, ""
    if isinstance(cell, Terms):
        return cell.text, ""
    match = _TEXT.fullmatch(cell) if is_numeric else None
    if match is None:
        return cell, ""
    value, unit = float(match[1].replace(",", "")), match[2] or ""
    return _whole(value * _SCALE.get(unit, 1.0)), _BASE.get(unit, unit)


def _with_unit(quantity: Quantity) -> tuple[float | str, str]:
    """Return the exact value of a number, and the unit that makes it the same as its text."""
    if not math.isfinite(quantity.value):
        return quantity.text, ""
    match, value = _TEXT.fullmatch(quantity.text), _whole(float(quantity.value))
    if match is None or not match[2]:
        return value, ""
    shown, unit = float(match[1].replace(",", "")), match[2]
    if unit == "%":
        return value, "%" if _alike(value, shown) else "ratio" if _alike(100 * value, shown) else ""
    if unit in _SCALE and _alike(value, shown * _SCALE[unit]):
        return value, _BASE[unit]
    return value, unit if _alike(value, shown) else ""


def _whole(value: float) -> float:
    """Return a whole number without a point."""
    return int(value) if value.is_integer() and abs(value) < _EXACT_INTEGERS else value


def _alike(value: float, shown: float) -> bool:
    return abs(value - shown) <= _ROUNDED * max(abs(value), abs(shown)) or abs(value) + abs(shown) < 0.01


def csv_files(page: Page) -> Iterator[tuple[str, list[Sequence[object]]]]:
    """Yield the name of each file of a page as CSV, and its rows with the heads."""
    for section in flat_sections(page):
        for table in section.tables:
            rows = [
                [each.text or each.metric if isinstance(each, Term) else each for each in row]
                for row in table.rows
            ]
            yield f"{table.key}.csv", [table.columns, *rows]
    columns = ("metric", "unit", "better", "revision", "definition")
    manuals = [(each.metric, each.unit, each.better, each.revision, each.manual) for each in page.definitions]
    if manuals:
        yield "definitions.csv", [columns, *manuals]
