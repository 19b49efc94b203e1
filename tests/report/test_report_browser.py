"""The HTML report in a real browser: it draws, asks for nothing, and lets nothing in."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest
from observations import observation_of, renamed
from report_browser import opened, said_by

from ccl_bench.report.page import report_page
from ccl_bench.report.render.html import run_page
from ccl_bench.testing import Plan, Straggler, Style, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from ccl_bench.result.report_data import ReportData

MOST_BYTES = 2_000_000
WIDE, PHONE = 1400, 390
VIEWS = {
    "example": [(PHONE, "dark")],
    "18 ranks": [(PHONE, "light"), (WIDE, "light")],
}
"""Run -> how its report is looked at; 18 ranks are more than a chart draws as lying bars."""
HOSTILE = '</script><img src=x onerror="window.entered=1"><script>window.entered=1</script>'


def _run(name: str, folder: Path, request: pytest.FixtureRequest) -> Path:
    if name == "example":
        found: Path = request.getfixturevalue("example")
        return found
    plan = Plan(dp_shard=3, tp=2, pp=3, steps=1, layers=1, stragglers=(Straggler(11, layer_ns=90_000),))
    write_run(plan, folder / "run", style=Style(compresses=True))
    return folder / "run"


def _written(observed: ReportData, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_text(run_page(report_page(observed)), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", VIEWS)
def test_a_report_opens_without_a_network_and_draws_every_chart(
    name: str, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    observed = observation_of(_run(name, tmp_path, request))
    charts = list(report_page(observed).charts())
    file = _written(observed, tmp_path)
    assert len(charts) >= 4
    assert file.stat().st_size < MOST_BYTES
    for width, scheme in VIEWS[name]:
        with opened(browser, file, width=width, scheme=scheme) as (page, complaints):
            for chart in charts:
                drawing = page.locator(f"#chart-{chart.key} svg")
                assert drawing.locator(".mark-rect path, .mark-symbol path, .mark-line path").count() > 0
                box = drawing.bounding_box()
                assert box is not None
                assert 250 < box["width"] <= width
            assert said_by(page, "document.documentElement.scrollWidth") <= width
            assert complaints == []


def test_a_theme_is_chosen_and_kept_without_drawing_again(
    browser: Browser, observed: ReportData, tmp_path: Path
) -> None:
    colours = (
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('#chart-time-parts .mark-rect path')).fill]"
    )
    file = _written(observed, tmp_path)
    with opened(browser, file, width=WIDE, scheme="light") as (page, complaints):
        light = said_by(page, colours)
        said_by(page, "window.drawn = document.querySelector('#chart-time-parts svg')")
        switch = page.get_by_role("button", name="Theme")
        switch.press("Enter")
        assert (switch.inner_text(), said_by(page, colours)) == ("Theme: light", light)
        switch.press("Enter")
        dark = said_by(page, colours)
        assert switch.inner_text() == "Theme: dark"
        assert all(before != after for before, after in zip(light, dark, strict=True))
        assert said_by(page, "window.drawn === document.querySelector('#chart-time-parts svg')") is True
        page.emulate_media(media="print")
        assert said_by(page, colours)[1] == light[1]
        page.emulate_media(media="screen")
        for _ in range(60):  # Chromium stores while the page goes on: another process may read too early
            page.wait_for_timeout(100)
            page.reload()
            page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached")
            if said_by(page, colours) == dark:
                break
            while switch.inner_text() != "Theme: dark":  # its process ended before it had stored the choice
                switch.press("Enter")
        else:
            pytest.fail("after no reload the page had the theme that was chosen")
        assert complaints == []


def test_the_keyboard_reaches_everything_every_chart_has_words_and_a_number_leads_to_its_definition(
    browser: Browser, observed: ReportData, tmp_path: Path
) -> None:
    with opened(browser, _written(observed, tmp_path), width=WIDE, scheme="light") as (page, complaints):
        page.keyboard.press("Tab")
        assert said_by(page, "document.activeElement.textContent") == "Skip to the content"
        for chart in report_page(observed).charts():
            figure = page.locator(f"#chart-{chart.key}")
            drawing = figure.locator("[role=img]")
            assert drawing.get_attribute("aria-label") == f"{chart.title}. {chart.summary}"
            assert figure.locator("[role=graphics-symbol]:not([aria-hidden=true])").count() == 0
            data = figure.locator("details.data")
            data.locator("summary").press("Enter")
            assert data.locator("tbody tr").count() == len(chart.table.rows)
        regions = [each.get_attribute("aria-label") for each in page.get_by_role("region").all()]
        assert len(set(regions)) == len(regions)
        outline = [heading.inner_text() for heading in page.locator("h1, h2").all()]
        assert outline[:3] == ["llama-tiny", "Data quality", "Headline numbers"]
        definition = page.locator("#metric-iteration_wall_clock_time pre")
        assert not definition.is_visible()
        page.locator("#headline").get_by_role("link", name="Step time").press("Enter")
        definition.wait_for(state="visible")
        assert "iteration_wall_clock_time =" in definition.inner_text()
        assert complaints == []


def _poisoned(folder: Path) -> Path:
    """Write a run whose names would leave their place on a page that does not escape them."""
    write_run(Plan(dp_shard=2, steps=2, layers=1), folder, style=Style(compresses=True))
    card = folder / "workload_card.yaml"
    text = re.sub(
        r"^( *model_family:).*$", f"\\1 {json.dumps(HOSTILE)}", card.read_text(), flags=re.MULTILINE
    )
    assert HOSTILE.split("<")[1].split(">")[0] in text
    card.write_text(text, encoding="utf-8")
    for trace in folder.glob("rank*_trace.json.gz"):
        events = json.loads(gzip.decompress(trace.read_bytes()))
        for event in events["traceEvents"]:
            if event.get("cat") == "kernel" and "nccl" not in event["name"]:
                event["name"] += HOSTILE
            if "Process Group Description" in event.get("args", {}):
                event["args"]["Process Group Description"] += HOSTILE
        events["deviceProperties"][0]["name"] += HOSTILE
        trace.write_bytes(gzip.compress(json.dumps(events).encode()))
    return folder


def test_hostile_names_in_card_and_traces_are_shown_and_do_nothing(browser: Browser, tmp_path: Path) -> None:
    observed = observation_of(_poisoned(tmp_path / HOSTILE.replace("/", "")))
    file = _written(observed, tmp_path)
    with opened(browser, file, width=WIDE, scheme="light") as (page, complaints):
        assert said_by(page, "window.entered") is None
        assert said_by(page, "document.images.length") == 0
        assert page.locator("h1").inner_text() == HOSTILE
        whole = [each.get_attribute("title") or "" for each in page.locator("#kernels [title]").all()]
        assert any(HOSTILE in name for name in whole)
        for chart in report_page(observed).charts():
            page.locator(f"#chart-{chart.key} svg").hover()
        assert complaints == []


def test_a_script_that_got_in_would_not_run(browser: Browser, observed: ReportData, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    text = run_page(report_page(renamed(observed, "planted")))
    file.write_text(text.replace("<h1>planted", "<h1><script>window.entered=1</script>planted"))
    with opened(browser, file, width=WIDE, scheme="light") as (page, complaints):
        assert said_by(page, "window.entered") is None
        assert [complaint for complaint in complaints if "Content Security Policy" in complaint] == complaints
        assert len(complaints) == 1
