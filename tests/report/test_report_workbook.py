"""Reports for spreadsheets: a workbook and files of CSV, whose numbers are those of the page."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from commands import ROOT

import ccl_bench as ccl
from ccl_bench.cli.bench import main
from ccl_bench.report.page import report_page
from ccl_bench.report.page_model import (
    ManualPage,
    Page,
    PageFinding,
    PageSection,
    PageTable,
    PageVerdict,
    Quantity,
    Short,
    Term,
    Tile,
)
from ccl_bench.report.render.flat import flat_sections
from ccl_bench.report.render.workbook import workbook

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("shared_cache")

_XML = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


class Sheet:
    """One sheet, read with nothing but the archive and its XML."""

    def __init__(self, archive: zipfile.ZipFile, number: int, texts: list[str]) -> None:
        self.root = ET.fromstring(archive.read(f"xl/worksheets/sheet{number}.xml"))
        self.cells: dict[str, str | float] = {}
        for cell in self.root.iter(f"{_XML}c"):
            assert cell.find(f"{_XML}f") is None, "a formula"
            value = cell.findtext(f"{_XML}v")
            if value is not None:
                self.cells[cell.attrib["r"]] = texts[int(value)] if cell.get("t") == "s" else float(value)
        self.links = {each.attrib["ref"]: each.get("location") for each in self.root.iter(f"{_XML}hyperlink")}
        assert all(each.get(_LINK) is None for each in self.root.iter(f"{_XML}hyperlink")), "a link elsewhere"

    def row(self, number: int) -> list[str | float]:
        return [each for key, each in self.cells.items() if re.sub("[A-Z]", "", key) == str(number)]

    @property
    def frozen_rows(self) -> int:
        [pane] = self.root.iter(f"{_XML}pane")
        assert pane.attrib["state"] == "frozen"
        return int(pane.attrib["ySplit"])


def read(content: bytes) -> dict[str, Sheet]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        strings = ET.fromstring(archive.read("xl/sharedStrings.xml")).iter(f"{_XML}si")
        texts = ["".join(each.itertext()) for each in strings]
        book = ET.fromstring(archive.read("xl/workbook.xml"))
        names = [each.attrib["name"] for each in book.iter(f"{_XML}sheet")]
        return {name: Sheet(archive, number, texts) for number, name in enumerate(names, start=1)}


HOSTILE = [
    "=1+1",
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "{=1}",
    "https://example.org",
    "mailto:a",
    "\x1b[1m",
    "7",
]


@pytest.fixture
def page() -> Page:
    """Return a page with every kind of cell, and texts of strangers everywhere."""
    rows = (
        (Term("mfu"), Quantity(0.1234567, "123 ms"), Quantity(2e9, "2 GB"), Quantity(0.5, "50 %"), "12 kB"),
        ("=2+2", Quantity(0.0, "0 s"), Quantity(0.0, "0 B"), Quantity(0.25, "25 %"), "-"),
        (Short("a", "whole"), Quantity(1e-6, "1 µs"), "-", Quantity(float("nan"), "unknown"), "1.5 MB"),
    )
    mixed = ((Quantity(9.04, "9.04 %"), "7"), (Quantity(12.5, "12.5 GB/s"), "8"), (Quantity(3, "3"), "0x7"))
    section = PageSection(
        "=1", "=A/B: [one]*", HOSTILE[0], (Tile("@x", Quantity(634e-3, "634 ms"), "mfu"),),
        tables=(
            PageTable(("=n", "time", "bytes", "share", "message"), rows, "+caption"),
            PageTable(("value", "id"), mixed, note="-note"),
        ),
    )  # fmt: skip
    hostile = PageSection("h", "=a/b: [ONE]*", tables=(PageTable(("t",), tuple((t,) for t in HOSTILE)),))
    return Page(
        "=title", (("=k", "=v"),), (Tile("-l", Quantity(1234567.25, "1,234,567"), "mfu"),),
        (PageFinding("warning", "=f"),), (section, PageSection("none", "None", absent="why"), hostile),
        (ManualPage("mfu", "%", "higher", 1, "=manual"),), "ccl-bench", PageVerdict("=s"),
    )  # fmt: skip


def test_numbers_have_all_digits_in_the_unit_of_their_head(page: Page) -> None:
    sheets = read(workbook(page))
    sheet = sheets["=A B   one"]
    heads = sheet.row(5)
    assert heads[:3] == ["number", "value", "unit"]
    assert heads[7:12] == ["=n", "time [s]", "bytes [B]", "share [ratio]", "message [B]"]
    # Cells of several units have them beside; a column of texts stays as it is.
    assert heads[12:] == ["value", "unit of value", "id"]
    assert sheet.row(6)[1:3] == [0.634, "s"]
    assert [sheet.cells[f"J{row}"] for row in (6, 7, 8)] == [0.1234567, 0, 1e-6]
    assert [sheet.cells[f"K{row}"] for row in (6, 7, 8)] == [2e9, 0, "-"]
    assert [sheet.cells[f"L{row}"] for row in (6, 7, 8)] == [0.5, 0.25, "unknown"]
    assert [sheet.cells[f"M{row}"] for row in (6, 7, 8)] == [12000, "-", 1.5e6]
    assert [sheet.cells[f"P{row}"] for row in (6, 7, 8)] == ["%", "GB/s", ""]
    assert [sheet.cells[f"Q{row}"] for row in (6, 7, 8)] == ["7", "8", "0x7"]
    assert (sheet.cells["I8"], sheet.cells["I3"], sheet.cells["O4"]) == ("whole", "+caption", "-note")
    assert sheets["Headline numbers"].cells["B6"] == 1234567.25


def test_heads_are_frozen_and_metrics_lead_to_their_definitions(page: Page) -> None:
    sheets = read(workbook(page))
    assert [*sheets] == ["Headline numbers", "Data quality", "=A B   one", "=a b   ONE 2", "Definitions"]
    assert {sheet.frozen_rows for name, sheet in sheets.items() if name != "Definitions"} == {5}
    assert sheets["Definitions"].row(2) == ["mfu", "%", "higher", 1, "=manual"]
    links = {*sheets["=A B   one"].links.items(), *sheets["Headline numbers"].links.items()}
    assert links == {("A6", "'Definitions'!A2"), ("I6", "'Definitions'!A2")}


def test_texts_of_strangers_are_texts(page: Page) -> None:
    content = workbook(page)
    sheet = read(content)["=a b   ONE 2"]  # which refuses formulas and links to other places
    texts = [sheet.cells[f"A{row}"] for row in range(6, 6 + len(HOSTILE))]
    assert texts[:4] == HOSTILE[:4]
    assert texts[6:] == ["https://example.org", "mailto:a", "?[1m", "7"]
    assert workbook(page) == content


def test_a_run_as_a_workbook_has_the_numbers_of_its_page(tmp_path: Path) -> None:
    run = ccl.open(ROOT / "examples/runs/megatron-tp8-a100")
    page = report_page(run.observed)
    sheets = read(run.report(tmp_path / "run.xlsx").read_bytes())
    cells = [cell for sheet in sheets.values() for cell in sheet.cells.values()]
    quantities = [tile.quantity for each in (page, *page.sections) for tile in _tiles(each)]
    for section in (*page.sections, *page.appendix):
        for table in (*(each.table for each in section.drawings()), *section.tables):
            quantities += [cell for row in table.rows for cell in row if isinstance(cell, Quantity)]
    assert len(quantities) > 500
    numbers = {cell for cell in cells if isinstance(cell, float)}
    assert all(any(abs(each.value - n) <= 1e-12 * abs(n) for n in numbers) for each in quantities)
    # Columns have one unit, which their heads state; only the list of all results has units in a column.
    tables = [table for each in flat_sections(page) for table in each.tables]
    assert [table.key for table in tables if any("unit of" in head for head in table.columns)] == [
        "all-results"
    ]
    # The last row of the times of ranks has shares of a step, and is a table of its own.
    [times, shares] = [table for table in tables if table.caption == "Time in a mean step of each rank"]
    assert ("compute [s]" in times.columns, len(times.rows)) == (True, 8)
    assert ("compute [%]" in shares.columns, len(shares.rows)) == (True, 1)


def _tiles(part: Page | PageSection) -> tuple[Tile, ...]:
    return part.headline if isinstance(part, Page) else part.numbers


def test_csv_is_a_folder_with_one_file_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(ROOT / "examples/runs/megatron-tp8-a100")
    command = ["report", run, "--format", "csv"]
    assert main(command) == 2
    assert "-o" in capsys.readouterr().err
    assert main(["report", run, "--format", "xlsx"]) == 2
    folder = tmp_path / "tables"
    assert main([*command, "-o", str(folder)]) == 0
    assert {*capsys.readouterr().out.split()} == {str(path) for path in folder.iterdir()}
    with (folder / "kernels-2.csv").open(encoding="utf-8", newline="") as file:
        kinds = [*csv.DictReader(file)]
    measured = ccl.open(run).metric("total_communication_time")
    [communication] = [row for row in kinds if row["type"] == "communication"]
    assert float(communication["time [s]"]) == pytest.approx(measured.value)
    # Its own files are replaced, an edited one is not, and none of another report stays among them.
    assert main([*command, "-o", str(folder)]) == 0
    (folder / "kernels-9.csv").write_text("of another run")
    assert main([*command, "-o", str(folder)]) == 2
    assert "kernels-9.csv is not a table of this report" in capsys.readouterr().err
    (folder / "kernels-9.csv").unlink()
    (folder / "identity.csv").write_text("mine")
    assert main([*command, "-o", str(folder)]) == 2
    assert (folder / "identity.csv").read_text() == "mine"
