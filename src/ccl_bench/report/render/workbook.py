"""A report as an Excel workbook: a sheet a section, its tables side by side under frozen heads."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ccl_bench.base.text import harmless
from ccl_bench.report.page_model import TITLES, Term
from ccl_bench.report.render.flat import FlatSection, flat_sections

if TYPE_CHECKING:
    from ccl_bench.report.page_model import Page

_MOST_NAME = 31
"""Characters in the name of a sheet."""
_MOST_TEXT = 32_767
"""Characters in a cell."""
_WIDEST = 60
_HEAD_ROW = 4
"""Row of the heads, from 0: above it are the title, how to read the sheet, and the captions of tables."""
_CREATED = datetime(1980, 1, 1, tzinfo=UTC).replace(tzinfo=None)
"""The same run gives the same file."""


def workbook(page: Page) -> bytes:
    """Return a page as a workbook; texts are never formulas or links, numbers have all their digits."""
    # It has no types, and takes 50 ms.
    xlsxwriter: Any = import_module("xlsxwriter")

    stream = io.BytesIO()
    options = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    book = xlsxwriter.Workbook(stream, {"in_memory": True, **options})
    book.set_properties(
        {"title": _text(page.title), "comments": f"Made by {page.made_by}.", "created": _CREATED}
    )
    sheets, names = flat_sections(page), set[str]()
    writer = _Writer(book, {each.metric: row for row, each in enumerate(page.definitions, start=1)})
    for section in sheets:
        writer.section(book.add_worksheet(_sheet_name(section.title, names)), section)
    if page.definitions:
        writer.definitions(book.add_worksheet(TITLES["definitions"]), page)
    book.close()
    return stream.getvalue()


def _sheet_name(title: str, taken: set[str]) -> str:
    """Return a name that Excel takes and no other sheet has, in any case."""
    plain = re.sub(r"[\[\]:*?/\\']", " ", title).strip()[:_MOST_NAME] or "Sheet"
    name, number = plain, 1
    while name.lower() in taken or name.lower() in {"history", TITLES["definitions"].lower()}:
        number += 1
        name = f"{plain[: _MOST_NAME - 4]} {number}"
    taken.add(name.lower())
    return name


def _text(text: str) -> str:
    return harmless(text)[:_MOST_TEXT]


class _Writer:
    """Writes sheets; `rows` are the rows of metrics on the sheet of definitions."""

    def __init__(self, book: Any, rows: dict[str, int]) -> None:
        self.rows = rows
        self.bold = book.add_format({"bold": True})
        self.head = book.add_format({"bold": True, "bottom": 1, "text_wrap": True, "valign": "top"})
        self.grey = book.add_format({"font_color": "#596273"})
        self.wrapped = book.add_format({"text_wrap": True, "valign": "top"})
        self.top = book.add_format({"valign": "top"})

    def section(self, sheet: Any, section: FlatSection) -> None:
        """Write the tables of a section side by side."""
        sheet.write_string(0, 0, _text(section.title), self.bold)
        sheet.write_string(1, 0, _text(" ".join(section.about)), self.grey)
        left = 0
        for table in section.tables:
            sheet.write_string(2, left, _text(table.caption), self.bold)
            sheet.write_string(3, left, _text(table.note), self.grey)
            for column, title in enumerate(table.columns, start=left):
                sheet.write_string(_HEAD_ROW, column, _text(title), self.head)
                cells = [row[column - left] for row in table.rows]
                widths = (len(each) for each in (title, *cells) if isinstance(each, str))
                sheet.set_column(column, column, min(_WIDEST, max(10, *widths) + 1))
                for row, cell in enumerate(cells, start=_HEAD_ROW + 1):
                    self._cell(sheet, row, column, cell)
            left += len(table.columns) + 1
        sheet.freeze_panes(_HEAD_ROW + 1, 0)

    def _cell(self, sheet: Any, row: int, column: int, cell: object) -> None:
        if isinstance(cell, Term):
            text, place = _text(cell.text or cell.metric), self.rows.get(cell.metric)
            if place is None:
                sheet.write_string(row, column, text)
            else:
                sheet.write_url(row, column, f"internal:'{TITLES['definitions']}'!A{place + 1}", string=text)
        elif isinstance(cell, int | float):
            sheet.write_number(row, column, cell)
        else:
            sheet.write_string(row, column, _text(str(cell)))

    def definitions(self, sheet: Any, page: Page) -> None:
        """Write the definition of each metric into one row."""
        for column, (title, width) in enumerate(
            (("metric", 32), ("unit", 12), ("better", 10), ("revision", 9), ("definition", 100))
        ):
            sheet.write_string(0, column, title, self.head)
            sheet.set_column(column, column, width)
        for each in page.definitions:
            row = self.rows[each.metric]
            for column, text in enumerate((each.metric, each.unit, each.better)):
                sheet.write_string(row, column, _text(text), self.top)
            sheet.write_number(row, 3, each.revision, self.top)
            sheet.write_string(row, 4, _text(each.manual), self.wrapped)
        sheet.freeze_panes(1, 1)
