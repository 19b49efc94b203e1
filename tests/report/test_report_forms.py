"""The forms of a page that is written by hand: HTML, Markdown, text and pictures."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from observations import made, missing

from ccl_bench.report.page_model import (
    ManualPage,
    Page,
    PageCause,
    PageChart,
    PageFinding,
    PageSection,
    PageTable,
    PageVerdict,
    Quantity,
    Short,
    Term,
    Tile,
)
from ccl_bench.report.render import Form, images, render
from ccl_bench.report.render.html import environment, html_page, run_page, script
from ccl_bench.report.render.markdown import markdown
from ccl_bench.report.render.text import text
from ccl_bench.report.theme import DARK, LIGHT, with_plain_colours

ROWS = tuple((f"name{n}", Quantity(n / 4, f"{n / 4} s"), Term("mfu", "")) for n in range(4))
SHOWN = PageSection(
    "lists",
    "Lists",
    "How to read it.",
    (Tile("Busy", Quantity(7.0, "7 s"), "mfu", "higher", doubts=1),),
    tables=(PageTable(("name", "time", "metric"), ROWS, "Rows", "more", frozenset({1}), first=3),),
    notes=("a note",),
)
CAUSES = tuple(PageCause(f"Cause {n}", f"-{n} s", f"do {n}", f"rule{n}") for n in (1, 2, 3))
FINDINGS = (
    PageFinding("error", "it is torn", "a.json", "torn", "record again", 1200),
    PageFinding("note", "it is odd"),
)


def _page(**more: Any) -> Page:
    known = {
        "title": "a_run", "identity": (("model", "m"), ("ranks", "2")), "headline": SHOWN.numbers,
        "findings": FINDINGS, "sections": (SHOWN, PageSection("none", "None", absent="no data")),
        "definitions": (ManualPage("mfu", "%", "higher", 3, "Used ```share```."),), "made_by": "a program",
        "verdict": PageVerdict("It is slow.", CAUSES, ("a remark",)), "quality": "2 ranks",
        "appendix": (PageSection("files", "Files", tables=(PageTable(("file",), (("a.json",),)),)),),
    }  # fmt: skip
    return Page(**known | more)


def test_markdown_numbers_causes_from_1_and_has_every_part_once() -> None:
    blocks = markdown(_page()).removesuffix("\n").split("\n\n")
    assert blocks[:2] == ["# a\\_run", "**It is slow.**"]
    assert [line.partition(":")[0] for line in blocks[2].splitlines()] == [
        "1. Cause 1", "2. Cause 2", "3. Cause 3",
    ]  # fmt: skip
    assert "(`ccl-bench diagnose --explain rule2`)" in blocks[2].splitlines()[1]
    assert [block.removeprefix("## ") for block in blocks if block.startswith("## ")] == [
        "Data quality", "Headline numbers", "Lists", "Nothing to show", "Files", "Definitions",
    ]  # fmt: skip
    assert "- **None.** no data" in blocks
    at = blocks.index("**Rows**")
    assert blocks[at + 1].splitlines() == [
        "| name | time | metric |",
        "| --- | ---: | --- |",
        *(f"| name{n} | {n / 4} s | [mfu](#mfu) |" for n in range(4)),
    ]
    assert blocks[-2].splitlines() == ["```text", "Used '''share'''.", "```"]
    assert blocks[-3] == "%, higher is better, revision 3"


def test_markdown_lists_findings_with_their_fix_and_number() -> None:
    listed = next(block for block in markdown(_page()).split("\n\n") if block.startswith("- **error**"))
    error, fix, note = listed.splitlines()
    assert error == "- **error**: a.json: it is torn (torn) 1,200 more like this."
    assert fix.strip() == "- What to do: record again"
    assert note == "- **note**: it is odd"
    assert "No metric has a value" in markdown(_page(headline=(), verdict=None, findings=(), quality=""))


def test_text_numbers_causes_from_1_and_shows_the_first_rows() -> None:
    lines = [line.strip() for line in text(_page()).splitlines()]
    assert lines[:2] == ["CCL-Bench report: a_run", "It is slow."]
    assert [line for line in lines if "Cause" in line] == [f"{n} Cause {n}: -{n} s" for n in (1, 2, 3)]
    assert [line.split() for line in lines if line.startswith("name")] == [
        [f"name{n}", f"{n / 4}", "s", "mfu"] for n in range(3)
    ]
    assert "1 more row in the other forms of the report" in lines
    every = PageTable(("name", "time", "metric"), ROWS)
    whole = text(_page(sections=(PageSection("a", "All", tables=(every,)),)))
    assert "name3" in whole
    assert "more row" not in whole
    assert "Nothing to show" not in whole
    titles = ("Data quality", "Headline numbers", "Lists", "Nothing to show", "Files", "Definitions")
    places = [lines.index(title) for title in titles]
    assert places == sorted(places)


def test_a_report_begins_as_its_form_does() -> None:
    begins = {
        "html": "<!DOCTYPE html>",
        "json": "{\n",
        "markdown": "# one\n",
        "text": "CCL-Bench report: one\n",
    }
    observed = made(missing("mfu", "no peak"))
    whole = {form: render(observed, form) for form in get_args(Form)}
    assert {form: text[: len(begins[form])] for form, text in whole.items()} == begins
    assert [text[-1] for text in whole.values()] == ["\n"] * 4


def test_a_page_links_to_what_it_shows_with_short_titles() -> None:
    whole = run_page(_page(), before=[("index.html", "All runs")])
    navigation = re.findall(r'<li><a href="([^"]+)">([^<]+)</a></li>', whole)
    assert navigation == [
        ("index.html", "All runs"), ("#findings", "Findings"), ("#headline", "Headline"), ("#lists", "Lists"),
        ("#files", "Files"), ("#definitions", "Definitions"),
    ]  # fmt: skip
    places = re.findall(r'<section id="([\w-]+)"', whole)
    assert [each for each in places if each in {"lists", "none", "not-shown", "reference"}] == [
        "lists", "not-shown", "reference",
    ]  # fmt: skip


def test_names_from_a_run_are_no_html() -> None:
    environment.cache_clear()
    whole = run_page(_page(title="<b>&x", sections=(PageSection("a", "<i>T</i>", "<u>"),)))
    assert "&lt;b&gt;&amp;x" in whole
    assert "<i>T" not in whole
    assert "<u>" not in whole


def test_numbers_that_json_does_not_know_are_no_data_of_a_page() -> None:
    environment.cache_clear()
    template = environment().from_string("{{ data | tojson }}")
    assert template.render(data={"a": [1.5, None]}) == '{"a":[1.5,null]}'
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            template.render(data=[number])


def test_text_for_a_file_has_100_columns() -> None:
    lines = text(_page(verdict=PageVerdict("a " * 200))).splitlines()
    assert max(map(len, lines)) == 99  # 2 + 48 * 2 + 1; one more would end in column 101


def test_charts_have_six_digits_and_the_width_of_their_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccl_bench.report.render.html.library", lambda: "drawing()")
    spec = {"a": [1.23456789, True, "b"], "c": {"d": 1234567.0, "e": 1234567}, "autosize": "pad"}
    whole = html_page("t", "<p>body</p>", charts={"key": spec})
    data = json.loads(re.findall(r'<script type="application/json" id="charts">(.*?)</script>', whole)[0])
    assert data["specs"] == {
        "key": {"a": [1.23457, True, "b"], "c": {"d": 1234570.0, "e": 1234567}, "autosize": "pad"}
    }
    assert data["config"]["background"] == "transparent"
    assert "<script>drawing()</script>" in whole
    wide = html_page("t", "<p>body</p>", charts={"key": {}})
    assert '"specs":{"key":{"autosize":{"type":"fit-x","contains":"padding"}}}' in wide
    assert "drawing()" not in html_page("t", "<p>body</p>")


def test_pages_hold_their_styles_and_scripts_or_link_to_them() -> None:
    own = html_page("t", "<p>body</p>")
    assert "<style>\n:root {" in own
    assert f"<script>{script()}</script>" in own
    assert "Content-Security-Policy" in own
    assert '<script src="' not in own
    linked = html_page("t", "<p>body</p>", assets="../shared/", strip={"a": 1.5})
    assert '<link rel="stylesheet" href="../shared/ccl-bench.css">' in linked
    assert '<script src="../shared/ccl-bench.js"></script>' in linked
    assert "vega.js" not in linked
    assert "<style>" not in linked
    assert "Content-Security-Policy" not in linked
    assert '<script type="application/json" id="strip-data">{"a":1.5}</script>' in linked


def test_colours_are_put_in_for_their_variables_everywhere_but_in_data() -> None:
    spec = {
        "data": {"values": [{"name": "var(--text)"}]},
        "datasets": ["var(--text)"],
        "layer": [{"mark": "1px var(--text) var(--c1)"}, 7, "var(--unknown)"],
    }
    assert with_plain_colours(spec) == spec | {
        "layer": [{"mark": f"1px {LIGHT['text']} {LIGHT['c1']}"}, 7, "var(--unknown)"]
    }
    dark = with_plain_colours(spec, DARK)
    assert dark["layer"][0]["mark"] == f"1px {DARK['text']} {DARK['c1']}"


CHART = PageChart(
    "key", "A chart", {"width": "container", "mark": {"color": "var(--c1)"}}, "s", PageTable((), ())
)


def test_a_chart_that_stands_alone_is_720_points_wide_and_has_its_title() -> None:
    spec = images.static_spec(CHART)
    assert (spec["width"], spec["title"]["text"]) == (720, "A chart")
    assert spec["mark"]["color"] == LIGHT["c1"]
    assert spec["config"]["background"] == LIGHT["surface"]
    assert "var(--" not in str(spec)


def test_a_picture_is_drawn_as_svg_or_in_two_pixels_per_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vl_convert.vegalite_to_svg", lambda spec: f"<svg>{json.loads(spec)['title']['text']}</svg>"
    )
    monkeypatch.setattr("vl_convert.vegalite_to_png", lambda _, scale: b"png" * scale)
    assert images.image(CHART, "svg") == b"<svg>A chart</svg>"
    assert images.image(CHART, "png") == b"pngpng"


def test_cells_are_read_by_their_text_and_terms_by_their_name() -> None:
    row = (
        Short("gemm<...>", "gemm<float>"),
        Term("mfu", "Utilisation"),
        Term("TTFT"),
        Quantity(7.0, "7 s"),
        "x|y",
    )
    page = _page(sections=(PageSection("a", "All", tables=(PageTable(("a", "b", "c", "d", "e"), (row,)),)),))
    assert (
        "| gemm\\<...\\> | [Utilisation](#mfu) | [TTFT](#TTFT) | 7 s | x\\|y |" in markdown(page).splitlines()
    )
    line = next(line for line in text(page).splitlines() if "gemm" in line)
    assert line.split() == ["gemm<...>", "Utilisation", "TTFT", "7", "s", "x|y"]
