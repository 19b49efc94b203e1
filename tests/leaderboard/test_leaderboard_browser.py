"""A person in a real browser: filters, sorts, chooses columns, compares, reads a run, downloads.

800 runs lie in the store. What pages show is the same on every database: test_leaderboard_questions.py.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from leaderboard_browser import follow
from leaderboard_bundles import Made, added, changed
from leaderboard_client import Client
from leaderboard_rows import filled
from sqlalchemy import event
from web_server import served

from ccl_bench.leaderboard.store import Store, open_store
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leaderboard_browser import Browsing
    from playwright.sync_api import Page

ROWS = 800
TRAINING = 4
"""A seed with which more runs are of training, which is then shown first."""
PHONE = 390
QUESTIONS = 30
"""The most that the page asks. Twelve are of the table: phases, count, groups and runs of at most three of
them, in order and without what is sorted by, columns, numbers, choices of the filters, names of the metrics.
The others are of the answer: what matters, model, lengths, workload, its rows, further questions."""

REAL = Made(
    name="real", values={"throughput_tokens_sec": 1e7, "mfu": 55.0, "iteration_wall_clock_time": 0.5}, day=400
)
"""The fastest run of all, with files."""


@dataclass(frozen=True)
class Full:
    """A server over a full store."""

    address: str
    store: Store
    made: list[Made]
    real: str
    slower: str


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, example: Path) -> Iterator[Full]:
    """Return a server of 800 runs, two of which have files."""
    store = open_store(tmp_path_factory.mktemp("full"))
    real = added(store, changed(REAL, report=example.read_bytes()))
    slower = added(store, changed(REAL, name="slower", hardware="B200", values={"mfu": 50.0}))
    store.catch_up()
    made = filled(store, ROWS - 2, seed=TRAINING)
    with served(create_app(store)) as address:
        yield Full(address, store, made, real, slower)
    store.engine.dispose()


def _names(page: Page) -> list[str]:
    """Return the identifiers of the runs that the table shows, in order."""
    found: list[str] = page.locator("#runs input[name=run]").evaluate_all("boxes => boxes.map(b => b.value)")
    return found


def _column(page: Page, title: str) -> list[float]:
    """Return the numbers of a column, in order."""
    titles = page.locator("#runs thead th").all_inner_texts()
    place = next(n for n, text in enumerate(titles) if text.replace("\u200b", "").startswith(title))
    cells = page.locator(f"#runs tbody tr:not(.group) > :nth-child({place + 1}) data")
    return [float(value or "nan") for value in cells.evaluate_all("cells => cells.map(c => c.value)")]


def _asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_a_person_filters_sorts_and_chooses_columns(full: Full, browser: Browsing) -> None:
    expected = sorted(
        m.values["TTFT"] for m in full.made if m.framework == "vllm" and m.tp == 4 and m.hardware == "H100"
    )

    def steps(page: Page) -> None:
        page.goto(full.address)
        follow(page.get_by_role("link", name="Inference"))
        assert not page.get_by_role("button", name="Show").is_visible()  # filters act at once
        for label, value in (("Framework", "vllm"), ("Hardware", "H100")):
            with page.expect_navigation():
                page.get_by_label(label, exact=True).select_option(value=value)
        page.get_by_text("Lengths, scale and parallelism").click()
        with page.expect_navigation():
            page.get_by_label("tp", exact=True).select_option(value="4")
        follow(page.get_by_text("group runs of one workload"))
        assert f"of {len(expected)} runs" in page.locator("#count").inner_text()
        follow(page.get_by_role("link", name="TTFT", exact=True))
        assert page.locator("th[aria-sort=ascending]").inner_text().startswith("TTFT")
        page.get_by_text("Columns").click()
        with page.expect_navigation():  # several columns are one question
            for name in ("TPOT", "Output throughput"):
                page.get_by_role("checkbox", name=name, exact=True).uncheck()
            page.get_by_role("checkbox", name="GPU busy").check()
        assert page.get_by_role("checkbox", name="GPU busy").is_visible()  # what was open stays open
        follow(page.get_by_text("group runs of one workload"))
        assert _asked(page)["columns"] == ["TTFT", "gpu_busy"]
        assert _column(page, "TTFT") == expected[:50]
        assert len(_column(page, "GPU busy")) == min(50, len(expected))
        # The address alone brings all of it back, and the way back works.
        shown, address = _names(page), page.url
        page.goto("about:blank")
        page.goto(address)
        assert _names(page) == shown
        follow(page.get_by_role("link", name="Framework: vllm , remove"))
        assert "framework" not in _asked(page)
        assert _asked(page)["hardware"] == ["H100"]

    browser.walk(steps)


def test_a_search_finds_a_run_and_its_page_says_everything(full: Full, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(full.address)
        page.get_by_label("Search").fill("REAL lovelace")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert _names(page) == [full.real[:12]]
        assert page.locator("td.place").inner_text().startswith("1 of ")
        assert page.locator("td.best data").first.get_attribute("value") == "10000000"
        follow(page.locator("#runs tbody th.run a"))
        assert page.locator("h1").inner_text().startswith("meta-llama/Llama-3.1-8B on 8 × ")
        assert full.real in page.locator("main").inner_text()
        for title in ("Results", "Findings about the data", "Workload card", "Provenance", "History"):
            assert page.get_by_role("heading", name=title).is_visible()
        assert "rank 1 of" in page.locator("#results ~ * tr", has_text="Throughput").inner_text()
        page.get_by_role("link", name="MFU", exact=True).last.click()
        assert page.locator("#metric-mfu").get_attribute("open") is not None
        page.go_back()
        follow(page.get_by_role("link", name="Full report"))
        page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached")
        assert page.locator("[data-chart] svg").count() > 3

    browser.walk(steps)


def test_chosen_runs_are_compared_even_from_several_pages(full: Full, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(f"{full.address}/?q=slower")
        page.get_by_label(f"Select meta-llama/Llama-3.1-8B, {full.slower[:8]}").check()
        assert page.get_by_role("button", name="Compare selected (1)").is_disabled()
        page.goto(f"{full.address}/?q=real")
        page.get_by_label(f"Select meta-llama/Llama-3.1-8B, {full.real[:8]}").check()
        follow(page.get_by_role("button", name="Compare selected (2)"))
        assert _asked(page)["run"] == [full.slower[:12], full.real[:12]]
        text = page.locator("main").inner_text()
        assert "comparable: they did the same work" in text
        assert "hardware.device.model" in text
        follow(page.get_by_role("link", name="make it the baseline"))
        assert _asked(page)["run"] == [full.real[:12], full.slower[:12]]

    browser.walk(steps)


def test_a_download_holds_what_the_table_shows(full: Full, browser: Browsing, tmp_path: Path) -> None:
    def steps(page: Page) -> None:
        page.goto(f"{full.address}/?phase=training&precision=fp8&sort=mfu&together=no&columns=mfu")
        shown = _column(page, "MFU")
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        download.value.save_as(tmp_path / "runs.csv")
        with (tmp_path / "runs.csv").open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert [float(row["mfu"]) for row in rows[:50]] == shown
        assert len(rows) == sum(m.phase == "training" and m.precision == "fp8" for m in full.made)
        with page.expect_download() as download:
            page.get_by_role("link", name="JSON").click()
        download.value.save_as(tmp_path / "runs.json")
        plain = json.loads((tmp_path / "runs.json").read_bytes())
        assert [run["id"] for run in plain] == [row["id"] for row in rows]
        assert [run["numbers"]["mfu"]["value"] for run in plain[:50]] == shown

    browser.walk(steps)


def test_everything_works_without_scripts(full: Full, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(f"{full.address}/?q=real")
        page.locator("#runs input[name=run]").check()
        follow(page.get_by_role("button", name="Compare selected"))
        assert page.locator("h1").inner_text() == "Compare runs"
        page.goto(full.address)
        page.get_by_label("Model", exact=True).select_option(value="qwen2.5-7b")
        follow(page.get_by_role("button", name="Show"))
        assert "qwen2.5-7b" in page.locator("#runs").inner_text()
        follow(page.get_by_role("link", name="Next"))
        assert "Page 2 of" in page.locator(".pages").inner_text()
        assert _asked(page)["model"] == ["qwen2.5-7b"]

    browser.walk(steps, scripts=False)


def test_every_page_fits_a_phone_and_names_what_is_on_it(full: Full, browser: Browsing) -> None:
    unnamed = """() => [...document.querySelectorAll('input:not([type=hidden]), select, button, a')]
      .filter(each => !each.labels?.length && !each.textContent.trim() && !each.getAttribute('aria-label')
                      && !each.title).map(each => each.outerHTML)"""
    regions = "() => [...document.querySelectorAll('[role=region]')].map(each => each.ariaLabel)"

    def steps(page: Page) -> None:
        addresses = ["/", f"/runs/{full.real}", "/workloads", "/metrics", "/compare", "/api"]
        addresses += [f"/compare?run={full.real}&run={full.slower}"]
        for address in addresses:
            page.goto(full.address + address)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, address
            assert page.evaluate(unnamed) == []
            found = page.evaluate(regions)
            assert len(set(found)) == len(found), address
            assert page.locator("h1").count() == page.locator("main").count() == 1
            assert page.locator("html").get_attribute("lang") == "en"
            assert page.locator("table:not(:has(th[scope]))").count() == 0

    browser.walk(steps, width=PHONE)


def test_a_phone_scrolls_the_table_and_not_the_page(full: Full, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(full.address)
        board = page.locator(".board")
        assert board.evaluate("each => each.scrollWidth > each.clientWidth")
        first = page.locator("#runs tbody th.run").first
        assert "torchtitan" in first.inner_text() or "megatron-lm" in first.inner_text()
        page.locator("#runs a.sort").last.scroll_into_view_if_needed()
        assert page.evaluate("scrollX") == 0

    browser.walk(steps, width=PHONE, scheme="dark")


CUT_OFF = """() => {
  const board = document.querySelector(".board"), edge = board.getBoundingClientRect().right;
  const isCut = (cell) => cell.getBoundingClientRect().right > edge + 1;
  return [...document.querySelectorAll("#runs thead th.number")].filter(isCut).map(head => head.innerText);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "in_sight"), [(1280, None), (PHONE, 3)])
def test_the_columns_that_matter_are_in_sight_without_scrolling(
    full: Full, browser: Browsing, width: int, in_sight: int | None, scheme: str
) -> None:
    """Every default metric of a phase on a screen of 1280 pixels, the first three on a phone."""

    def steps(page: Page) -> None:
        for phase in ("training", "inference", "any"):
            page.goto(f"{full.address}/?phase={phase}")
            page.wait_for_selector("#runs")
            columns = page.locator("#runs thead th.number").count()
            assert len(page.evaluate(CUT_OFF)) <= columns - (in_sight or columns), phase

    browser.walk(steps, width=width, scheme=scheme)


def test_kinds_of_numbers_have_outlines_of_their_own(full: Full, browser: Browsing) -> None:
    outlines = """kinds => kinds.map(kind => {
      const badge = document.querySelector("#runs .badge").cloneNode(true);
      badge.className = `badge ${kind}`;
      document.querySelector("#runs th.run").append(badge);
      const { borderTopStyle, borderTopWidth, borderTopLeftRadius } = getComputedStyle(badge);
      return [borderTopStyle, borderTopWidth, borderTopLeftRadius].join();
    })"""
    kinds = ["verified", "self_reported", "reported", "predicted"]

    def steps(page: Page) -> None:
        page.goto(full.address)
        assert len(set(page.evaluate(outlines.replace("th.run", "tbody th.run"), kinds))) == len(kinds)

    browser.walk(steps)


def test_arrow_keys_pass_by_choices_and_the_focus_stays(full: Full, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(full.address)
        page.get_by_label("Hardware").focus()
        options = page.locator("#hardware option").evaluate_all("each => each.map(one => one.value)")
        with page.expect_navigation():
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowDown")
        assert _asked(page)["hardware"] == [options[2]]
        assert page.evaluate("document.activeElement.id") == "hardware"

    browser.walk(steps)


def test_the_keyboard_and_a_screen_reader_find_their_way(full: Full, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(full.address)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        assert page.locator("#runs th[aria-sort]").count() == 1
        assert page.get_by_role("search").count() == 1
        assert page.get_by_role("table", name="Published runs").count() == 1
        sorting = page.locator("#runs a.sort").nth(3)
        sorting.focus()
        assert sorting.evaluate("each => getComputedStyle(each).outlineStyle") != "none"

    browser.walk(steps)


def test_a_table_of_800_runs_costs_few_questions_to_the_database_as_one_of_50_does(
    full: Full, small: Store
) -> None:
    """On PostgreSQL too: the questions are the same; benchmarks/leaderboard.py measures the milliseconds."""
    filled(small, 50)
    for address in ("/", "/?q=hopper+h100&sort=mfu&tp=2", "/?phase=inference&sort=TTFT", "/?phase=any"):
        few, many = _questions(small, address), _questions(full.store, address)
        assert max(len(few), len(many)) <= QUESTIONS, address


def test_no_question_of_the_table_reads_every_number_and_only_a_search_every_run(full: Full) -> None:
    """SQLite chooses its way by the indexes that there are, PostgreSQL by how full it finds the tables."""
    for address in ("/", "/?q=hopper+h100&sort=mfu&tp=2", "/?phase=any&page=12", "/?phase=any&columns=x"):
        asked = _questions(full.store, address)
        with full.store.engine.connect() as connection:
            steps = [
                (str(step.detail), "searched LIKE" in text)
                for text, what in asked
                for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", what)
            ]
        assert any("metric_values USING" in step for step, _ in steps)
        assert not [step for step, _ in steps if step.startswith("SCAN metric_values")]
        # A search has to read every run: one after the other is the quickest.
        assert not [step for step, is_search in steps if step.startswith("SCAN runs") and not is_search]


def _questions(store: Store, address: str) -> list[tuple[str, Any]]:
    """Return what the server asks the database to answer an address."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, text: str, what: Any, *_: object) -> None:
        if text.startswith(("SELECT", "WITH")):
            asked.append((text, what))

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        assert Client(create_app(store)).get(address).status_code == 200
    finally:
        event.remove(store.engine, "before_cursor_execute", note)
    return asked
