"""Measure reports of many ranks in a browser: their size, how soon they open, how fast the strip moves.

    python benchmarks/strip.py

Chromium must be installed. Wall times depend on what else runs; processor times hardly do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.evaluate.report_data import collect_report_data
from ccl_bench.report.page import report_page
from ccl_bench.report.render.html import run_page
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, Straggler, Style, write_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser

RANKS = (8, 256)
TP = 8
LAYERS = 60
FRAMES = 60
OPENED = 5

_MOVES = """
new Promise((done) => {
  const strip = document.querySelector(".strip-scroll"), times = [];
  let left = FRAMES, before;
  const next = (now) => {
    if (before !== undefined) times.push(now - before);
    before = now;
    if (!left--) { done(JSON.stringify(times)); return; }
    const key = left > 50 ? "+" : left > 40 ? "-" : left % 2 ? "ArrowRight" : "ArrowLeft";
    strip.dispatchEvent(new KeyboardEvent("keydown", { key }));
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})"""
"""Zooms in, out and moves, one step a frame; the time from frame to frame includes drawing it."""


def page_of(folder: Path, ranks: int) -> Path:
    """Return the report of a generated run, written unless it exists."""
    file = folder / f"{ranks}-ranks.html"
    if not file.exists():
        run = folder / f"{ranks}-ranks"
        shutil.rmtree(run, ignore_errors=True)
        plan = Plan(
            dp_shard=max(ranks // TP, 1),
            tp=min(TP, ranks),
            layers=LAYERS,
            steps=2,
            jitter_ns=5_000,
            stragglers=(Straggler(ranks // 3, layer_ns=90_000),),
        )
        write_run(plan, run, style=Style(compresses=True))
        file.write_text(run_page(report_page(collect_report_data(open_run(str(run))))), encoding="utf-8")
    return file


def measured(browser: Browser, file: Path) -> dict[str, Any]:
    """Return the cost of opening a page and of moving in it."""
    opened, spent_opening = [], []
    for _ in range(OPENED):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        page.goto(file.as_uri())
        spent_opening.append(1000 * _processor_s(session))
        entry = _evaluate(session, "JSON.stringify(performance.getEntriesByType('navigation')[0].toJSON())")
        opened.append(json.loads(entry)["loadEventEnd"])
        page.wait_for_selector("[data-strip][data-drawn]")
        page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached")
        if len(opened) < OPENED:
            page.close()
    before = _processor_s(session)
    frames = json.loads(_evaluate(session, _MOVES.replace("FRAMES", str(FRAMES))))
    spent = _processor_s(session) - before
    page.close()
    return {
        "bytes": file.stat().st_size,
        "open_ms": statistics.median(opened),
        "open_processor_ms": statistics.median(spent_opening),
        "frame_ms": statistics.median(frames),
        "slowest_frame_ms": max(frames),
        "processor_ms": 1000 * spent / FRAMES,
    }


def _evaluate(session: Any, script: str) -> str:
    parameters = {"expression": script, "awaitPromise": True, "returnByValue": True}
    return str(session.send("Runtime.evaluate", parameters)["result"]["value"])


def _processor_s(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number of ranks."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/bench/strip"))
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    switches = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=switches)
        print("ranks  page     opens, processor  frame, processor  slowest")
        for ranks in RANKS:
            figures = measured(browser, page_of(folder, ranks))
            print(
                f"{ranks:>5}  {figures['bytes'] / 1e6:.2f} MB"
                f"  {figures['open_ms']:.0f} ms, {figures['open_processor_ms']:.0f} ms"
                f"    {figures['frame_ms']:.1f} ms, {figures['processor_ms']:.1f} ms"
                f"  {figures['slowest_frame_ms']:.0f} ms"
            )
        browser.close()


if __name__ == "__main__":
    main()
