"""The strip of a step: what it shows against the trace as plain JSON, and how readers move in it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from observations import made, observation_of, ok, rows
from plain_json import document
from report_browser import opened, said_by
from strips import made_strip, pieces_of

from ccl_bench.evaluate.strip import in_order
from ccl_bench.report.page import report_page
from ccl_bench.report.render.html import run_page
from ccl_bench.report.render.markdown import markdown
from ccl_bench.result.drill_down import StripRank

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from ccl_bench.result.drill_down import Strip

RANKS = 8


@pytest.fixture(scope="module")
def megatron(corpus: Path) -> Path:
    """Return the run of eight ranks with one step."""
    return corpus / "kineto" / "megatron-tp8"


@pytest.fixture(scope="module")
def strip(megatron: Path) -> Strip:
    """Return its strip."""
    found = observation_of(megatron).series.strip
    assert found is not None
    return found


def _events(run: Path, rank: int) -> list[dict[str, Any]]:
    return document(run / f"megatron_kineto_{rank}.json.gz")["traceEvents"]


def _is_call(event: dict[str, Any]) -> bool:
    return event.get("cat") == "kernel" and event["name"].startswith("nccl")


def _calls(run: Path) -> list[list[int]]:
    """Return the durations of the all-reduces of each rank in ns, in their order."""
    own = [sorted(filter(_is_call, _events(run, rank)), key=lambda e: e["ts"]) for rank in range(RANKS)]
    return [[int(event["dur"] * 1000) for event in events] for events in own]


def test_every_piece_of_a_step_is_one_event_of_the_trace(megatron: Path, strip: Strip) -> None:
    for rank in strip.ranks:
        events = [e for e in _events(megatron, int(rank.rank)) if e.get("ph") == "X"]
        lanes = {lane.name: pieces_of(lane) for lane in rank.lanes}
        found = [piece for pieces in lanes.values() for piece in pieces]
        computing = [e for e in events if e.get("cat") == "kernel" and not _is_call(e)]
        copies = [e for e in events if e.get("cat") in {"gpu_memcpy", "gpu_memset"}]
        assert sum(piece.kind == "compute" for piece in found) == len(computing)
        assert sum(piece.kind == "memory" for piece in found) == len(copies)
        worked = [*computing, *copies, *filter(_is_call, events)]
        assert {*lanes} == {f"stream {event['args']['stream']}" for event in worked}
        assert sum(p.length for p in found if p.kind == "compute") * strip.unit_ns == sum(
            int(e["dur"] * 1000) for e in computing
        )


def test_waits_and_transfers_are_those_of_matched_calls(megatron: Path, strip: Strip) -> None:
    calls = _calls(megatron)
    shortest = [min(durations) for durations in zip(*calls, strict=True)]
    for rank in strip.ranks:
        own = calls[int(rank.rank)]
        found = [piece for lane in rank.lanes for piece in pieces_of(lane)]
        waits = [piece for piece in found if piece.kind == "waiting"]
        assert len(waits) == sum(mine > least for mine, least in zip(own, shortest, strict=True))
        assert sum(p.length for p in waits) * strip.unit_ns == sum(own) - sum(shortest)
        assert sum(p.length for p in found if p.kind == "transfer") * strip.unit_ns == sum(shortest)
        expected = [
            {str(r) for r in range(RANKS) if calls[r][number] == least}
            for number, (mine, least) in enumerate(zip(own, shortest, strict=True))
            if mine > least
        ]
        assert all(piece.awaits in last for piece, last in zip(waits, expected, strict=True))
    most = max(sum(own) for own in calls)
    late = {rank.rank: rank.late_s for rank in strip.ranks}
    assert late == {str(r): pytest.approx((most - sum(own)) / 1e9) for r, own in enumerate(calls)}


def test_parts_of_a_step_are_in_the_table_and_add_up(megatron: Path, strip: Strip) -> None:
    page = report_page(observation_of(megatron))
    shown = page.strip()
    assert shown is not None
    head = shown.table.columns
    by_rank = {row[0]: dict(zip(head, row, strict=True)) for row in shown.table.rows}
    step = [e for e in _events(megatron, 4) if e.get("cat") == "kernel"]
    computing = sorted((e["ts"], e["ts"] + e["dur"]) for e in step if not _is_call(e))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(computing))
    whole = sum(end - start for start, end in computing) / 10**6
    assert by_rank["4"]["compute"].value == pytest.approx(float(whole))  # type: ignore[union-attr]
    assert [row[0] for row in rows(shown.table)] == [str(rank) for rank in range(RANKS)]
    assert "waits least for others, 254 ms less than the one that waits most" in markdown(page)
    assert json.dumps(shown.data).count("waits") == 0


def test_many_ranks_are_in_the_order_of_lateness_with_those_of_a_node_together() -> None:
    late = {3: 0.5, 17: 0.9, 16: 0.1, 0: 0.2}
    every = [StripRank(str(r), 0, 1, [], {}, r // 4, 0.0, late.get(r, 0.0)) for r in range(20)]
    found = [int(rank.rank) for rank in in_order(every)]
    assert found[:8] == [17, 16, 18, 19, 3, 0, 1, 2]
    assert found[8:] == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert [rank.rank for rank in in_order(every[:16])] == [str(rank) for rank in range(16)]


def _state(page: Page) -> dict[str, int]:
    read = "JSON.stringify({...document.querySelector('[data-strip] canvas').dataset})"
    return {name: int(value) for name, value in json.loads(said_by(page, read)).items()}


def _settled(page: Page, frames: int) -> dict[str, int]:
    """Return the state of the strip once it has drawn more than so many frames."""
    for _ in range(200):
        state = _state(page)
        if state["frames"] > frames:
            return state
        page.wait_for_timeout(10)
    raise AssertionError(f"no frame after {frames}")


def test_readers_zoom_and_see_who_is_awaited(browser: Browser, megatron: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(run_page(report_page(observation_of(megatron))), encoding="utf-8")
    with opened(browser, file, width=1400, scheme="light") as (page, complaints):
        whole = _state(page)
        assert whole["from"] == 0
        scroller = page.locator(".strip-scroll")
        scroller.focus()
        page.keyboard.press("+")
        zoomed = _settled(page, whole["frames"])
        assert 0 < zoomed["from"] < zoomed["to"] < whole["to"]
        page.keyboard.press("ArrowRight")
        moved = _settled(page, zoomed["frames"])
        assert moved["to"] - moved["from"] == pytest.approx(zoomed["to"] - zoomed["from"], abs=1)
        assert moved["from"] > zoomed["from"]
        page.get_by_role("button", name="Whole step").click()
        again = _settled(page, moved["frames"])
        assert (again["from"], again["to"]) == (0, whole["to"])
        scroller.hover(position={"x": 300, "y": 60})
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        wheeled = _settled(page, again["frames"])
        assert wheeled["to"] - wheeled["from"] < whole["to"]
        scroller.focus()
        for key in ("0", "ArrowDown", "Enter", "ArrowDown", "n"):
            page.keyboard.press(key)
        remark = page.locator(".strip-remark").inner_text().splitlines()
        assert remark == [
            "all_reduce, 67.1 MB",
            "rank 0 · stream 24",
            f"{_calls(megatron)[0][0] // 1000} µs from 46.842 ms",
            "communication, transfer",
        ]
        page.keyboard.press("n")
        assert "waits for rank 6, the last to arrive" in page.locator(".strip-remark").inner_text()
        assert complaints == []


def test_a_page_of_256_ranks_is_small_and_redraws(browser: Browser, tmp_path: Path) -> None:
    strip = made_strip(256, 234, {77: 0.2, 201: 0.1})
    observed = made(ok("gpu_busy", 90.0, "%", per_rank_parts_s_per_step={}), strip=strip)
    file = tmp_path / "report.html"
    file.write_text(run_page(report_page(observed)), encoding="utf-8")
    assert file.stat().st_size < 3_000_000
    with opened(browser, file, width=390, scheme="dark") as (page, complaints):
        first = _state(page)
        page.get_by_role("button", name="Zoom in").click()
        state = _settled(page, first["frames"])
        assert state["to"] - state["from"] < first["to"]
        page.get_by_role("button", name="Order").click()
        assert page.get_by_role("button", name="Order: by number").count() == 1
        assert said_by(page, "document.documentElement.scrollWidth") <= 390
        assert page.locator("#strip details tbody tr").count() == 256
        assert complaints == []
