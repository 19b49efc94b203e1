"""The whole way of a visitor to a filled board, and of its maintainer: a question, its answer, its rows."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from commands import invoke
from leaderboard_browser import follow
from leaderboard_bundles import Made, added, changed
from web_server import served

from ccl_bench.base.lazy_imports import pl
from ccl_bench.leaderboard.reported.observations import FIELDS, Reported, packaged
from ccl_bench.leaderboard.site import write_site
from ccl_bench.leaderboard.store import Store, open_store
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import find_runs
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leaderboard_browser import Browsing
    from playwright.sync_api import Page

MODEL = "deepseek-ai/DeepSeek-R1"
PHONE = 390
INFERENCE_X = {
    "hw": "mi355x", "framework": "sglang", "model": MODEL, "precision": "fp4", "image": "sglang:v0.5.9",
    "isl": 1024, "osl": 1024, "conc": 64, "tp": 8, "ep": 1, "disagg": False, "mean_ttft": 0.5,
    "mean_tpot": 0.01, "tput_per_gpu": 20000.0, "output_tput_per_gpu": 10000.0,
}  # fmt: skip
"""More output per GPU than any row of the package has, so that it must become the answer."""


@dataclass(frozen=True)
class Filled:
    """A server over the rows of the package, those of one model and prompt of AIConfigurator."""

    address: str
    store: Store
    run: str
    silicon: pl.DataFrame


@pytest.fixture(scope="module")
def filled_board(tmp_path_factory: pytest.TempPathFactory, example: Path) -> Iterator[Filled]:
    store = open_store(tmp_path_factory.mktemp("filled"), create=True)
    silicon, upstream = packaged()
    of_model = silicon.rows.filter(
        pl.col("model.model_family") == MODEL,
        pl.col("data.input_len") == 1024,
        pl.col("hardware.device.device_count").is_not_null(),
    ).unique(["variant", *FIELDS], keep="none", maintain_order=True)
    store.add_reported(Reported(silicon.source, of_model))
    store.add_reported(upstream)
    run = added(store, changed(Made(values={"mfu": 40.0}), report=example.read_bytes()))
    store.catch_up()
    with served(create_app(store)) as address:
        yield Filled(address, store, run, of_model)
    store.engine.dispose()


def _most_output(rows: pl.DataFrame, floor: float) -> float:
    """Return the most output tokens/s per GPU of 1k/1k rows by the rule of the step's page, in a loop."""
    best = 0.0
    for row in rows.iter_rows(named=True):
        if (row["data.input_len"], row["data.output_len"]) != (1024, 1024):
            continue
        first, each = row["number.silicon_ttft_ms"], row["number.silicon_tpot_ms"]
        if 1 / each >= floor:
            load, length = row["data.serving.max_concurrency"], row["data.output_len"]
            seconds = first + (length - 1) * each
            best = max(best, load * length / seconds / row["hardware.device.device_count"])
    return best


def _first_number(page: Page) -> float:
    """Return the number of the first row that the sentence names."""
    text = page.locator(".sentence").inner_text().partition("per GPU: ")[2]
    found = re.search(r", ([\d,.]+) tokens/s", text)
    assert found is not None, text
    return float(found[1].replace(",", ""))


def test_a_visitor_asks_reads_the_answer_and_follows_it_to_its_source(
    filled_board: Filled, browser: Browsing, tmp_path: Path
) -> None:
    def steps(page: Page) -> None:
        page.goto(filled_board.address)
        with page.expect_navigation():
            page.get_by_label("Model", exact=True).select_option(value=MODEL)
        for label in ("Prompt tokens", "Output tokens"):
            if not page.get_by_label(label, exact=True).is_visible():
                page.get_by_text("Lengths, scale and parallelism").click()
            with page.expect_navigation():
                page.get_by_label(label, exact=True).select_option(value="1024")
        assert "1,024 tokens in and 1,024 out" in page.locator(".sentence").inner_text()
        assert _first_number(page) == pytest.approx(_most_output(filled_board.silicon, 0), rel=1e-3)
        follow(page.get_by_role("link", name="100 tokens/s", exact=True))
        assert "at 100 tokens/s per user or more" in page.locator(".sentence").inner_text()
        best = _first_number(page)
        assert best == pytest.approx(_most_output(filled_board.silicon, 100), rel=1e-3)
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        download.value.save_as(tmp_path / "runs.csv")
        with (tmp_path / "runs.csv").open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert {(row["model"], row["input_len"]) for row in rows} == {(MODEL, "1024")}
        assert any(
            float(row["output_throughput_per_device"]) == pytest.approx(best, rel=1e-3) for row in rows
        )
        follow(page.locator(".sentence a").nth(2))
        assert f"{best:,.0f} tokens/s" in page.locator("#numbers ~ *").inner_text()
        follow(page.locator(".notice a"))
        assert page.locator("h1").inner_text().startswith("AIConfigurator")
        assert "Apache-2.0" in page.locator(".about").inner_text()

    browser.walk(steps)


def test_a_pair_of_libraries_is_compared_from_its_link(filled_board: Filled, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(f"{filled_board.address}/?phase=training")
        pair = page.locator(".answer li", has_text="MSCCL++ against NCCL")
        assert "median of 4 pairs" in pair.inner_text()
        follow(pair.get_by_role("link").first)
        assert len(parse_qs(urlsplit(page.url).query)["run"]) == 2
        assert "comparable" in page.locator("main").inner_text()

    browser.walk(steps)


def test_without_scripts_the_question_is_asked_with_a_button(filled_board: Filled, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto(filled_board.address)
        page.get_by_label("Model", exact=True).select_option(value=MODEL)
        page.get_by_text("Lengths, scale and parallelism").click()
        for label in ("Prompt tokens", "Output tokens"):
            page.get_by_label(label, exact=True).select_option(value="1024")
        follow(page.get_by_role("button", name="Show"))
        follow(page.get_by_role("link", name="50 tokens/s", exact=True))
        assert _first_number(page) == pytest.approx(_most_output(filled_board.silicon, 50), rel=1e-3)
        assert page.locator(".answer svg .dot").count() > 10
        follow(page.locator(".answer svg a").first)
        assert page.get_by_role("heading", name="Numbers").is_visible()

    browser.walk(steps, scripts=False)


def test_the_columns_that_matter_are_in_sight_on_a_filled_board(
    filled_board: Filled, browser: Browsing
) -> None:
    cut_off = """() => {
      const edge = document.querySelector(".board").getBoundingClientRect().right + 1;
      return [...document.querySelectorAll("#runs thead th.number")]
        .filter(cell => cell.getBoundingClientRect().right > edge).map(cell => cell.innerText);
    }"""

    def steps(page: Page) -> None:
        for phase in ("training", "inference", "any"):
            for width, in_sight in ((1280, 0), (PHONE, 3)):
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"{filled_board.address}/?phase={phase}")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                columns = page.locator("#runs thead th.number").count()
                assert len(page.evaluate(cut_off)) <= (columns - in_sight if in_sight else 0), (phase, width)

    browser.walk(steps)


def test_a_maintainer_imports_a_file_and_withdraws_a_run_while_the_board_runs(
    filled_board: Filled, browser: Browsing, tmp_path: Path
) -> None:
    data = str(filled_board.store.data)
    (tmp_path / "agg_mi355x.json").write_text(json.dumps(INFERENCE_X))
    (tmp_path / "agg_broken.json").write_text(json.dumps(INFERENCE_X | {"mean_tpot": 0}))
    command = ["ccl-bench", "board", "import", str(tmp_path), "--to", data, "--date", "2026-11-01"]
    asked = f"{filled_board.address}/?phase=inference&model={MODEL}&input_len=1024&output_len=1024"

    def before(page: Page) -> None:
        page.goto(asked)
        assert "mi355x" not in page.locator(".sentence").inner_text().lower()
        page.goto(f"{filled_board.address}/?phase=any&q={filled_board.run}")
        assert page.locator("#runs input[name=run]").count() == 1

    def after(page: Page) -> None:
        page.goto(asked)
        assert _first_number(page) == 10_000
        follow(page.locator(".sentence a").nth(2))
        assert "v0.5.9" in page.locator(".identity").inner_text()
        follow(page.locator(".notice a"))
        assert page.locator(".about").inner_text().startswith("1 row, 2026-11-01")
        page.goto(f"{filled_board.address}/?phase=any&q={filled_board.run}")
        assert page.locator("#runs input[name=run]").count() == 0
        page.goto(f"{filled_board.address}/runs/{filled_board.run}")
        assert "withdrawn: wrong clock" in page.locator(".notice").inner_text()
        follow(page.get_by_role("navigation").get_by_role("link", name="Gaps"))
        assert "of 26 standard workloads have rows" in page.locator(".lead").inner_text()
        assert page.locator("main code", has_text="ccl-bench new").count() > 0

    browser.walk(before)
    done = invoke(command)
    assert (done.returncode, "agg_broken.json" in done.stderr) == (4, True), done.stderr
    withdraw = ["ccl-bench", "board", "withdraw", filled_board.run, "--at", data, "--note", "wrong clock"]
    assert invoke(withdraw).returncode == 0
    browser.walk(after)
    assert re.search(r"^inference-x +0 +1 ", invoke(command).stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def files(filled_board: Filled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the filled board as a static site."""
    folder = tmp_path_factory.mktemp("files") / "public"
    assert write_site(filled_board.store, folder).left_out == ()
    return folder


def test_a_filled_board_as_files_takes_less_than_10_mb(files: Path) -> None:
    assert sum(path.stat().st_size for path in files.rglob("*") if path.is_file()) < 10_000_000


def test_a_filled_board_as_files_answers_from_a_disk(files: Path, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto((files / "training-1.html").as_uri())
        page.locator(".others summary").click()
        follow(page.locator(".others a").first)
        assert "/questions/" in page.url
        assert page.locator(".sentence").inner_text().startswith("For ")
        page.goto((files / "inference-2.html").as_uri())
        follow(page.get_by_role("link", name="Next"))  # beyond the pages that are files
        page.wait_for_selector("#runs[data-shown]")
        assert "Page 3 of" in page.locator(".pages").inner_text()
        with page.expect_navigation():
            page.get_by_label("Hardware", exact=True).select_option(value="A100")
        page.wait_for_selector("#runs[data-shown]")
        follow(page.locator("#runs tbody th.run a").first)
        assert "CCL-Bench" in page.locator("h1").inner_text()
        follow(page.get_by_role("navigation").get_by_role("link", name="Gaps"))
        assert "of 26 standard workloads" in page.locator(".lead").inner_text()

    browser.walk(steps)


def test_a_filled_board_as_files_is_read_without_scripts(files: Path, browser: Browsing) -> None:
    def steps(page: Page) -> None:
        page.goto((files / "index.html").as_uri())
        assert "Without scripts you can read the first 2 pages" in page.locator("#pages").inner_text()
        assert page.locator(".answer svg .dot").count() > 10
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
        follow(page.locator(".sentence a").last)
        assert "AIConfigurator" in page.locator("h1").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE

    browser.walk(steps, scripts=False, width=PHONE)


def test_every_link_of_a_filled_board_as_files_leads_to_a_file(files: Path) -> None:
    broken = set()
    for page in files.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not link.startswith(("data:", "https:")) and not (page.parent / link).is_file():
                broken.add(f"{page.relative_to(files)}: {link}")
    assert sorted(broken) == []


AXE = "axe-core/axe.min.js"
"""The checks of accessibility that `make services` installs where npm is; the licence is MPL-2.0."""
VIOLATIONS = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(
  each => `${each.id}: ${each.nodes[0].html.slice(0, 200)}`))"""


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the script of axe-core; skip without it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which installs axe-core: make services")
    root = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, check=True).stdout
    script = Path(root.strip(), AXE)
    if not script.is_file():
        pytest.skip("axe-core is not installed: make services")
    return script.read_text(encoding="utf-8")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", PHONE)])
def test_axe_finds_nothing_on_any_page(
    filled_board: Filled, browser: Browsing, axe: str, scheme: str, width: int
) -> None:
    with filled_board.store.engine.connect() as connection:
        rows = find_runs(connection, RunQuery(phase="inference", origin="reported"), []).runs[:2]
    one, other = (each.run["id"] for each in rows)
    addresses = ["/?size=5", "/?size=5&phase=training", f"/runs/{one}", "/sources/ccl-bench-2026", "/gaps"]
    if scheme == "light":
        addresses += [
            f"/?size=5&model={MODEL}&interactivity=50", f"/runs/{filled_board.run}", "/workloads",
            f"/workloads/{rows[0].run['workload'][:12]}", "/compare", f"/compare?run={one}&run={other}",
            "/metrics", "/api",
        ]  # fmt: skip

    def steps(page: Page) -> dict[str, list[str]]:
        violations = {}
        for address in addresses:
            answered = page.goto(filled_board.address + address)
            assert answered is not None
            assert answered.status == 200, address
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            page.evaluate(axe)
            violations[address] = page.evaluate(VIOLATIONS)
        return {address: each for address, each in violations.items() if each}

    assert browser.walk(steps, width=width, scheme=scheme) == {}
