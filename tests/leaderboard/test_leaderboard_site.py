"""The leaderboard as files: opened from a disk or below any path it answers as the server does."""

from __future__ import annotations

import contextlib
import csv
import http.server
import json
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from leaderboard_browser import follow
from leaderboard_bundles import Made, added, changed, many, placed

from ccl_bench.base.errors import UsageError
from ccl_bench.leaderboard import site as site_writer
from ccl_bench.leaderboard.site import write_site
from ccl_bench.leaderboard.store import State, Store, new_event, open_store
from ccl_bench.leaderboard.store.query import RunQuery, complete_query
from ccl_bench.leaderboard.store.query_result import count_phases, filter_options, find_runs
from ccl_bench.result import ResultFinding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leaderboard_browser import Browsing
    from playwright.sync_api import Page

    from ccl_bench.leaderboard.bundle.format import Bundle

PHONE = 390
SCRIPT = "<script>alert('x')</script>"
MADE = [
    *many(105),
    Made(
        name=SCRIPT,
        submitter=SCRIPT,
        description="</script>" + SCRIPT,
        model=SCRIPT,
        values={"mfu": 1.0},
        findings=(ResultFinding("ranks-missing", "error", "a rank has no trace"),),
        day=301,
    ),
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a store with 106 runs, one of them withdrawn and one hostile."""
    store = open_store(tmp_path_factory.mktemp("published"))
    runs = placed(store.data, MADE)
    store.catch_up()
    store.record(runs[0], new_event(State.WITHDRAWN, "Ada Lovelace", "wrong clock"))
    yield store
    store.engine.dispose()


@pytest.fixture(scope="module")
def site(published: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of its site."""
    folder = tmp_path_factory.mktemp("site") / "public"
    written = write_site(published, folder)
    assert written.runs == len(MADE)
    assert written.left_out == ()
    return folder


@contextlib.contextmanager
def _hosted(folder: Path) -> Iterator[str]:
    """Give the address of a plain web server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _names(page: Page) -> list[str]:
    found: list[str] = page.locator("#runs input[name=run]").evaluate_all("boxes => boxes.map(b => b.value)")
    return found


def _expected(store: Store, question: RunQuery) -> tuple[list[str], int, dict[str, list[str]]]:
    """Return the runs on the page, how many there are, and the choices of each filter."""
    with store.engine.connect() as connection:
        asked = complete_query(question, count_phases(connection))
        found = find_runs(connection, asked, asked.columns)
        offered = filter_options(connection, asked)
    reported = {name: [f"{value} ({count:,})" for value, count in each] for name, each in offered.items()}
    return [each.run["id"][:12] for each in found.runs], found.total, reported


CHOICES = """() => Object.fromEntries([...document.querySelectorAll("#filters .fields select")]
  .map(each => [each.name, [...each.options].slice(1).map(one => one.textContent)]))"""


FIRST_COLUMNS = ["Throughput", "Step time", "MFU"]
"""What is drawn first of a workload of training."""

QUESTIONS: list[dict[str, Any]] = [
    {"phase": "any", "page": 3},
    {"phase": "training", "sort": "iteration_wall_clock_time"},
    {"phase": "inference", "sort": "TTFT", "order": "desc", "together": "no"},
    {"phase": "training", "hardware": ["H100", "B200"], "tp": 2, "columns": ["mfu"]},
    {"q": "lovelace nccl", "sort": "submitted_at"},
    {"phase": "any", "sort": "model"},
    {"phase": "any", "state": "withdrawn"},
    {"phase": "any", "state": "verified", "precision": ["fp8"], "sort": "device_count", "order": "desc"},
    {"phase": "any", "q": "nothing at all"},
]


def test_a_site_on_a_disk_answers_every_question_as_the_server_does(
    site: Path, published: Store, browser: Browsing
) -> None:
    def steps(page: Page) -> None:
        for asked in QUESTIONS:
            page.goto(f"{(site / 'index.html').as_uri()}?{urlencode(asked, doseq=True)}")
            page.wait_for_selector("#runs[data-shown]")
            names, total, offered = _expected(published, RunQuery(**asked))
            assert _names(page) == names, asked
            shown = page.evaluate(CHOICES)
            assert {name: shown[name] for name in offered} == offered, asked
            words = page.locator("#count").inner_text()
            assert words.startswith("No run matches") if not total else f"of {total} run" in words

    browser.walk(steps)


def test_a_site_on_a_disk_reads_nothing_but_its_own_files_and_its_pages_fit_a_phone(
    site: Path, browser: Browsing
) -> None:
    asked: list[str] = []

    def steps(page: Page) -> None:
        page.on("request", lambda request: asked.append(request.url))
        pages = ["index.html", "workloads.html", "metrics.html", "compare.html"]
        pages += [next(site.glob(f"{kind}/*.html")).relative_to(site) for kind in ("runs", "workloads")]
        for name in (*pages, "index.html?phase=any&sort=mfu&q=lovelace"):
            page.goto(f"{site.as_uri()}/{name}", wait_until="networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, name

    browser.walk(steps, width=PHONE)
    assert len(asked) > 20
    assert [each for each in asked if not each.startswith((f"{site.as_uri()}/", "data:"))] == []


def test_a_person_walks_through_a_site_below_a_path(site: Path, published: Store, browser: Browsing) -> None:
    training = [each for each in MADE[1:] if each.phase == "training" and each.framework == "torchtitan"]

    def steps(page: Page) -> None:
        page.goto(f"{address}/{site.name}/")
        with page.expect_navigation():
            page.get_by_label("Framework", exact=True).select_option(value="torchtitan")
        page.wait_for_selector("#runs[data-shown]")
        assert f"of {len(training)} runs" in page.locator("#count").inner_text()
        follow(page.get_by_role("link", name="MFU", exact=True))
        page.wait_for_selector("#runs[data-shown]")
        assert page.locator("th[aria-sort=descending]").inner_text().startswith("MFU")
        page.get_by_text("Columns").click()
        with page.expect_navigation():
            page.get_by_role("checkbox", name="GPU busy").uncheck()
        page.wait_for_selector("#runs[data-shown]")
        assert "GPU busy" not in page.locator("#runs thead").inner_text()
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        with open(download.value.path(), encoding="utf-8") as stream:  # noqa: PTH123
            assert len(list(csv.DictReader(stream))) == len(training)
        for box in page.locator("#runs input[name=run]").all()[:2]:
            box.check()
        follow(page.get_by_role("button", name="Compare selected (2)"))
        page.wait_for_selector("#compared table")
        assert "omparable" in page.locator("#compared").inner_text()
        follow(page.locator(".chosen a").first)
        assert "runs/" in page.url
        page.get_by_role("link", name="results.json").wait_for()
        follow(page.locator(".crumbs a").last)
        drawn = page.locator("figcaption").all_inner_texts()
        assert [text.split(",")[0] for text in drawn][:3] == FIRST_COLUMNS

    def offered(page: Page) -> None:
        page.goto(f"{address}/{site.name}/compare.html")
        page.wait_for_selector("#compared table")
        assert "The two best comparable runs" in page.locator(".lead").inner_text()
        assert "Comparable: they did the same work" in page.locator("#compared").inner_text()

    with _hosted(site.parent) as address:
        browser.walk(offered)
        browser.walk(steps)


def test_without_scripts_every_listed_run_can_be_read(site: Path, browser: Browsing) -> None:
    def steps(page: Page) -> list[str]:
        page.goto((site / "any-1.html").as_uri())
        found = _names(page)
        while page.get_by_role("link", name="Next").count():
            follow(page.get_by_role("link", name="Next"))
            found += _names(page)
        assert not page.get_by_role("button", name="Show").is_visible()
        follow(page.locator("#runs tbody th.run a").first)
        assert page.get_by_role("heading", name="Results").is_visible()
        return found

    found = browser.walk(steps, scripts=False)
    assert len(found) == len(set(found)) == len(MADE) - 1


def test_hostile_text_is_shown_on_a_site_and_never_run(site: Path, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(f"{(site / 'index.html').as_uri()}?phase=any&q=alert&sort={SCRIPT}&columns={SCRIPT}")
        page.wait_for_selector("#runs[data-shown]")
        assert SCRIPT in page.locator("#runs").inner_text()
        page.goto(f"{(site / 'index.html').as_uri()}?phase=any&q=alert&columns=mfu")
        page.wait_for_selector("#runs[data-shown]")
        assert page.locator("#runs tbody td.number").inner_text().split() == ["1", "!", "doubtful"]
        follow(page.locator("#runs tbody th.run a").first)
        assert SCRIPT in page.locator("main").inner_text()

    browser.walk(steps)


def test_every_link_of_a_site_leads_to_a_file(site: Path) -> None:
    broken = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not link.startswith(("data:", "https:")) and not (page.parent / link).is_file():
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_the_downloads_of_a_site_hold_every_listed_run(site: Path) -> None:
    plain = json.loads((site / "runs.json").read_text(encoding="utf-8"))
    with (site / "runs.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == [run["id"] for run in plain]
    assert len(rows) == len(MADE) - 1


def test_a_site_is_replaced_only_when_asked_and_nothing_else_is_ever(small: Store, tmp_path: Path) -> None:
    added(small, changed(Made(), values={"mfu": 1.0}))
    target = tmp_path / "public"
    write_site(small, target)
    (target / "stale.html").write_text("old")
    with pytest.raises(UsageError, match="already exists"):
        write_site(small, target)
    write_site(small, target, force=True)
    assert not (target / "stale.html").exists()
    other = tmp_path / "home"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not a leaderboard"):
        write_site(small, other, force=True)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_site_with_a_report_shows_it(
    small: Store, tmp_path: Path, example: Path, browser: Browsing
) -> None:
    run = added(small, changed(Made(), values={"mfu": 1.0}, report=example.read_bytes()))
    write_site(small, tmp_path / "public")

    def steps(page: Page) -> None:
        page.goto((tmp_path / "public" / "runs" / f"{run[:12]}.html").as_uri())
        follow(page.get_by_role("link", name="Full report"))
        page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached")
        assert page.locator("[data-chart] svg").count() > 3

    browser.walk(steps)


def test_a_report_that_cannot_be_drawn_is_left_out_and_named(small: Store, tmp_path: Path) -> None:
    run = added(small, changed(Made(), values={"mfu": 1.0}, report=b"{}"))
    written = write_site(small, tmp_path / "public")
    assert len(written.left_out) == 1
    assert (tmp_path / "public" / "runs" / f"{run[:12]}.html").is_file()


def test_a_damaged_run_is_left_out_everywhere_and_named(small: Store, tmp_path: Path) -> None:
    run, good = added(small, changed(Made(), name="bad")), added(small, Made(values={"mfu": 1.0}))
    card = small.folder / run / "workload_card.yaml"
    card.write_text(card.read_text().replace("H100", "B200"))
    written = write_site(small, tmp_path / "public")
    assert (written.runs, len(written.left_out)) == (1, 1)
    index = (tmp_path / "public" / "index.html").read_text()
    assert good[:12] in index
    assert run[:12] not in index


PRETRAINING = {"fields": {"model.phase": "pretraining"}}


def test_a_phase_in_other_words_is_that_of_the_card(small: Store, tmp_path: Path) -> None:
    run = added(small, changed(Made(), values={"mfu": 1.0}, stated=PRETRAINING))
    assert small.bundle(run).fields["model.phase"] == "training"
    assert write_site(small, tmp_path / "public").left_out == ()
    assert run[:12] in (tmp_path / "public" / "index.html").read_text()


def test_a_phase_that_no_card_has_costs_nobody_else_the_site(small: Store, tmp_path: Path) -> None:
    wrong = {"fields": {"model.phase": "dreaming"}}
    (run, _) = placed(small.data, [Made(name="bad", stated=wrong), Made(values={"mfu": 1.0})])
    small.catch_up()
    assert "dreaming is not a known value" in small.refused[run].message
    assert write_site(small, tmp_path / "public").runs == 1


def test_what_cannot_be_drawn_is_named_and_costs_nobody_else_their_page(
    small: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = added(small, Made(name="bad", model="other")), added(small, Made(values={"mfu": 1.0}))
    listed = added(small, Made(name="third", model="third"))
    draw_run, draw_workload = site_writer.published_run_page, site_writer.workload_page

    def run_page(bundle: Bundle, *others: Any) -> str:
        return str(1 / (bundle.id != bad)) and draw_run(bundle, *others)

    def workload_page(workload: dict[str, Any], *others: Any) -> str:
        return str(1 / ("third" not in workload["label"])) and draw_workload(workload, *others)

    monkeypatch.setattr(site_writer, "published_run_page", run_page)
    monkeypatch.setattr(site_writer, "workload_page", workload_page)
    written = write_site(small, tmp_path / "public")
    assert written.runs == 2
    assert [bad in error.where or "workloads/" in error.where for error in written.left_out] == [True, True]
    index = (tmp_path / "public" / "any-1.html").read_text()
    assert (bad[:12] in index, good[:12] in index, listed[:12] in index) == (False, True, True)
    pages = [path.read_text() for path in (tmp_path / "public" / "workloads").iterdir()]
    assert sorted("cannot be drawn" in page for page in pages) == [False, True]
