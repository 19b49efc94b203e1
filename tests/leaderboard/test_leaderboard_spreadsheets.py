"""No spreadsheet finds a formula in a CSV of the board or of a command, however it divides the cells."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from typing import TYPE_CHECKING

import polars as pl
import pytest
from commands import ROOT, invoke, recorded_by
from hypothesis import given
from hypothesis import strategies as st
from leaderboard_bundles import Made, changed, placed
from leaderboard_client import Client

from ccl_bench.base.text import INERT, INERT_PATTERN, INERT_PATTERN_ONCE, csv_lines, harmless
from ccl_bench.leaderboard.site import write_site
from ccl_bench.leaderboard.web.app import create_app
from ccl_bench.report.results import as_csv
from ccl_bench.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    from leaderboard_browser import Browsing
    from playwright.sync_api import Page

    from ccl_bench.leaderboard.store import Store

_STARTS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"
_BEFORE = ("", " ", "\ufeff", "x;", "x; ", "x\t", "x|", "x\n", "x\r\n", 'x"', 'x";"', "x\u00a0;")
HOSTILE = [f'{before}{start}HYPERLINK("http://x","y")' for start in _STARTS for before in _BEFORE]
ONE_OF_EACH = HOSTILE[:: len(_BEFORE) // 2 + 1]
"""Texts with each start and each text before it once at least."""
_NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?([,;|\t].*)?", re.DOTALL)


def formulas(text: str) -> list[str]:
    """Return the cells that a spreadsheet would execute, whatever it takes for the end of a cell."""
    cells: list[str] = []
    for delimiter in (",", ";", "\t", "|"):
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
            if delimiter == "," and quoting == csv.QUOTE_NONE:
                continue  # none divides by commas and knows no quotes
            lines = io.StringIO(text, newline="")
            reader = csv.reader(lines, delimiter=delimiter, quoting=quoting)
            cells += [cell for row in reader for cell in row]
    cells += text.split('"')
    trimmed = (cell.lstrip(' \n\ufeff\u00a0"') for cell in cells)
    return [cell for cell in trimmed if cell.startswith(tuple(_STARTS)) and not _NUMBER.fullmatch(cell)]


def test_what_looks_for_formulas_finds_them() -> None:
    for text in [each for each in HOSTILE if not {"\t", "\r"} & set(each.partition("HYPER")[0][-1])]:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(["a", text])
        assert formulas(line.getvalue()), text


@pytest.mark.parametrize("start", _STARTS)
def test_text_is_written_so_that_no_cell_is_a_formula(start: str) -> None:
    hostile = [text for text in HOSTILE if start in text]
    text = "".join(csv_lines([["a", each, "b"] for each in hostile]))
    assert formulas(text) == []
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert [row[1].replace("'", "") for row in read] == [harmless(each).replace("'", "") for each in hostile]


@given(st.text('=\t\r\n ;"a\ufeff\u00a0', max_size=12))
def test_python_and_rust_find_the_same_formulas_as_a_search_that_begins_anew_at_each_place(text: str) -> None:
    anew = r"""(^[\s\ufeff]*|[;|\t\r\n"]\s*)([=+\-@\t\r])"""
    expected = re.sub(anew, r"\1'\2", text)
    assert re.sub(INERT_PATTERN_ONCE, r"\1'\2", text) == expected
    assert pl.Series([text]).str.replace_all(INERT_PATTERN, INERT).item() == expected


def test_numbers_and_usual_texts_stay_as_they_are() -> None:
    usual = ["-1.5", "-3", "1e-05", "-1e+20", -2.5, 7, "void f<float, -1>(int)", "a - b", "c=d", "x@lab"]
    (row,) = csv.reader(csv_lines([usual]))
    assert row == [str(each) for each in usual]


def test_the_tables_of_the_board_hold_no_formula(small: Store, tmp_path: Path, browser: Browsing) -> None:
    """As CSV from the server, as a file of the site, and as a browser saves it from the site."""
    made = []
    for number, text in enumerate(ONE_OF_EACH):
        said = dict.fromkeys(("submitter", "hardware", "framework", "framework_version", "library"), text)
        run = changed(Made(values={"mfu": float(-number)}), **said, name=f"{text}{number}")
        made.append(changed(run, extra=(Result(f"={number}", "ok", "=1", "higher", 1.0),)))
    placed(small.data, made)
    small.catch_up()
    shown = Client(create_app(small)).get("/api/v1/runs.csv").text
    assert len(list(csv.reader(io.StringIO(shown, newline="")))) == len(ONE_OF_EACH) + 1
    write_site(small, tmp_path / "site")

    def saved(page: Page) -> str:
        asked = "?phase=any&columns=mfu&columns=%3D1&q=hyperlink"
        page.goto((tmp_path / "site" / "index.html").as_uri() + asked)
        page.wait_for_selector("#runs[data-shown]")
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        with open(download.value.path(), encoding="utf-8", newline="") as stream:  # noqa: PTH123
            return stream.read()

    for text in (shown, (tmp_path / "site" / "runs.csv").read_text(encoding="utf-8"), browser.walk(saved)):
        assert "HYPERLINK" in text
        assert "=1" in text.splitlines()[0]
        assert formulas(text) == []


def test_results_as_csv_hold_no_formula() -> None:
    results = [Result(text, "failed", text, "higher", reason=text, fix=text, window=text) for text in HOSTILE]
    results.append(Result("mfu", "ok", "%", "higher", -4.5))
    assert formulas(as_csv(results)) == []
    assert "\nmfu,-4.5," in as_csv(results)


def test_commands_write_no_formula_from_a_trace(tmp_path: Path) -> None:
    """Names of operations and of the run are those that somebody may write into a trace."""
    run = recorded_by((0,), tmp_path / "=run")
    (path,) = run.glob("kineto_trace_0*")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    named = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    assert len(named) >= len(HOSTILE)
    for event, text in zip(named, HOSTILE, strict=False):
        event["name"] = text
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    done = invoke(["ccl-bench", "tables", str(run), "-o", str(tmp_path / "tables"), "--format", "csv"])
    assert done.returncode == 0, done.stderr
    written = [each.read_text(encoding="utf-8") for each in (tmp_path / "tables").glob("*.csv")]
    assert any("HYPERLINK" in text for text in written)
    measured = invoke(["ccl-metrics", str(run), "--all", "--format", "csv"]).stdout
    for text in [*written, measured]:
        assert formulas(text) == [], text[:300]


def test_every_csv_is_written_by_the_one_function_that_makes_it_harmless() -> None:
    source = ROOT / "src" / "ccl_bench"
    writers = {
        str(path.relative_to(source))
        for path in [*source.rglob("*.py"), *source.rglob("*.js")]
        if re.search(r"csv\.(writer|DictWriter)|write_csv|write_excel|text/csv\",", path.read_text("utf-8"))
    }
    assert writers == {"base/text.py", "api/tables.py", "leaderboard/pages/assets/site.js"}
