"""A comparison as a page of HTML, in a real browser: it draws and asks for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from compared_runs import comparison

from ccl_bench import metrics
from ccl_bench.report.comparison.page import html

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from ccl_bench.comparison.compare import Comparison

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def compared(before: Path, slower: Path, other_batch: Path) -> Comparison:
    """Return a run against a slower one and one with another batch."""
    return comparison(before, slower, other_batch, names=metrics.load().names())


def test_a_page_draws_its_charts_and_asks_for_nothing(
    compared: Comparison, browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "compared.html"
    file.write_text(html(compared), encoding="utf-8")
    assert file.stat().st_size < 2_000_000
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme="dark")
    page.set_default_timeout(300_000)
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("request", lambda asked: asked.url == file.as_uri() or complaints.append(asked.url[:80]))
    page.goto(file.as_uri())
    page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached")
    charts, text = page.locator("[data-chart] svg").count(), page.locator("body").inner_text()
    page.close()
    assert complaints == []
    assert charts == 2, "changes, and parts of the step; none for runs that are not comparable"
    assert "not comparable: they did different work" in text
    assert "backward_time" in text
    assert "The mean step got" in text


def test_the_page_says_what_the_comparison_says(compared: Comparison) -> None:
    page = html(compared)
    for pair in compared.pairs:
        for change in pair.changes:
            assert change.metric in page
    for word in ("data.global_batch_size", "sequences in a step are the work of a step", "Kernel types"):
        assert word in page


def test_names_from_outside_are_text(compared: Comparison) -> None:
    from dataclasses import replace

    hostile = replace(compared, pairs=(replace(compared.pairs[0], name=HOSTILE),))
    page = html(hostile)
    assert HOSTILE not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
