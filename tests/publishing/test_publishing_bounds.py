"""Bundles have bounds: what real runs need is far below them, and what is above costs the server little."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from publishing_archives import CARD, PROVENANCE, REPORT, RESULTS, edited, with_results

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.bounds import bounds
from ccl_bench.leaderboard.bundle.format import Bundle, Limits
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.leaderboard.pages.links import Links
from ccl_bench.leaderboard.pages.run import MOST_ROWS, published_run_page
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.store import State, new_event, open_store
from ccl_bench.leaderboard.store.query_result import find_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publishing_archives import Files

SHARE = 10
"""How many times the need of a recorded run each bound is, at least."""


def _nodes(raw: bytes) -> int:
    return sum(map(raw.count, (b",", b"[", b"{")))


def _written(files: Files, folder: Path) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _bytes_of_card(files: Files, more: int) -> Files:
    room = bounds()[CARD].bytes - len(files[CARD]) - 2
    return {**files, CARD: files[CARD] + b"\n#" + b"x" * (room + more)}


def _nodes_of(name: str) -> Callable[[Files, int], Files]:
    """Return what gives a file as many nodes as it may have, and some more."""

    def change(files: Files, more: int) -> Files:
        compact = json.dumps({"ignored": [], **json.loads(files[PROVENANCE])}).encode()
        if name != PROVENANCE:
            content = json.loads(files[name])
            results = content["results"] if name == REPORT else content
            results[0]["ignored"] = []
            compact = json.dumps(content).encode()
        filler = b",".join([b"0"] * (bounds()[name].nodes - _nodes(compact) + 1 + more))
        return {**files, name: compact.replace(b'"ignored": []', b'"ignored": [' + filler + b"]")}

    return change


def _depth(files: Files, more: int) -> Files:
    depth = bounds()[RESULTS].depth - 1 + more  # the details are a level themselves
    deep = json.loads("[" * depth + "]" * depth)
    return with_results(files, lambda results: _measured(results)["details"].update(deep=deep))


def _details(files: Files, more: int) -> Files:
    def change(results: list[Any]) -> None:
        count = sum(_values(result["details"]) for result in results)
        _measured(results)["details"]["filler"] = [0] * (bounds()[RESULTS].details - count - 1 + more)

    return with_results(files, change)


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


def _measured(results: list[Any]) -> dict[str, Any]:
    return next(result for result in results if result["status"] == "ok")


def _findings(files: Files, more: int) -> Files:
    def change(results: list[Any]) -> None:
        first = {"code": "a", "severity": "note", "message": "b"}
        missing = bounds()[RESULTS].findings - sum(len(result["findings"]) for result in results)
        _measured(results)["findings"] += [first] * (missing + more)

    return with_results(files, change)


def _fields(files: Files, more: int) -> Files:
    def change(made: dict[str, Any]) -> None:
        count = bounds()[PROVENANCE].fields + more
        made["fields"] |= {f"framework.env.V{n}": "1" for n in range(count - len(made["fields"]))}

    return edited(files, PROVENANCE, change)


def _items(files: Files, more: int) -> Files:
    def change(report: dict[str, Any]) -> None:
        times = report["series"]["step_times"]
        times["by_rank"] = times["by_rank"][:1] * (bounds()[REPORT].items + more)

    return edited(files, REPORT, change)


def _bytes_of(name: str) -> Callable[[Files, int], Files]:
    """Return what gives a file as many bytes as it may have, and some more."""
    return lambda files, more: {**files, name: files[name].ljust(Limits().text_bytes + more)}


def _rows(files: Files, more: int) -> Files:
    """Return a report with as many traces as a list may have, and so many ranks that its rows are full."""

    def change(report: dict[str, Any]) -> None:
        report["diagnosed"], report["series"] = None, {"time_parts": report["series"]["time_parts"][:1]}
        inspection, parts = report["inspection"], report["series"]["time_parts"]
        inspection["traces"] = inspection["traces"][:1] * bounds()[REPORT].items
        parts *= bounds()[REPORT].rows + more - _mappings_in_lists(inspection)

    return edited(files, REPORT, change)


def _mappings_in_lists(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    here = sum(isinstance(each, dict) for each in inner) if isinstance(value, list) else 0
    return here + sum(map(_mappings_in_lists, inner))


def _cells(files: Files, more: int) -> Files:
    def change(report: dict[str, Any]) -> None:
        rows = [[0.1] * 1000] * (bounds()[REPORT].cells // 1000 - 1) + [[0.1] * (1000 + more)]
        names = [[str(number) for number in range(count)] for count in (len(rows), len(rows[-1]))]
        report["series"]["waits"] = dict(zip(("ranks", "steps", "values_s"), (*names, rows), strict=True))

    return edited(files, REPORT, change)


BOUNDS: dict[str, tuple[Callable[[Files, int], Files], str]] = {
    "bytes of the card": (_bytes_of_card, "has more than 65,536 bytes"),
    "bytes of results": (_bytes_of(RESULTS), "results.json has more than 33,554,432 bytes"),
    "bytes of the report": (_bytes_of(REPORT), "report.json has more than 33,554,432 bytes"),
    "nodes of results": (_nodes_of(RESULTS), "results.json: holds 600,001 commas and brackets"),
    "nodes of the report": (_nodes_of(REPORT), "report.json: holds 900,001 commas and brackets"),
    "nodes of provenance": (_nodes_of(PROVENANCE), "provenance.json: holds 63,001 commas and brackets"),
    "depth": (_depth, "nested more than 40 levels"),
    "details": (_details, "the results have 80,001 values in their details"),
    "findings": (_findings, "the results have 5,001 findings"),
    "fields": (_fields, "state 501 fields"),
    "rows of a report": (_rows, "has 10,001 rows"),
    "cells of a grid": (_cells, "a grid of 10,001 cells"),
    "items of a series": (_items, "a series of 5,001 items"),
}


@pytest.mark.parametrize(("change", "message"), BOUNDS.values(), ids=BOUNDS)
def test_a_bundle_is_accepted_up_to_its_bound(
    bundle: Files, tmp_path: Path, change: Callable[[Files, int], Files], message: str
) -> None:
    validate_bundle(_written(change(bundle, 0), tmp_path / "at"), Limits())
    with pytest.raises(InputError, match=message):
        validate_bundle(_written(change(bundle, 1), tmp_path / "above"), Limits())


def test_a_recorded_run_needs_a_tenth_of_each_bound(bundle: Files) -> None:
    for name in (RESULTS, REPORT, PROVENANCE):
        assert _nodes(bundle[name]) <= bounds()[name].nodes / SHARE
    for name in (CARD, PROVENANCE):
        assert len(bundle[name]) <= bounds()[name].bytes / SHARE


def test_a_run_of_1_024_ranks_is_accepted_without_a_setting(bundle: Files, tmp_path: Path) -> None:
    """The bytes are those of `bounds.toml`; runs of 64 and 128 ranks grow by 18.7 and 22.2 kB a rank."""
    large = {RESULTS: 19_700_000, REPORT: 24_200_000}
    files = bundle | {name: bundle[name].ljust(size) for name, size in large.items()}
    validate_bundle(_written(files, tmp_path / "large"), Settings().limits)
    for name, size in large.items():
        assert 1024 * (18_700 if name == RESULTS else 22_200) < size < Limits().text_bytes < 2 * size


def test_what_is_above_a_bound_never_becomes_objects(bundle: Files, tmp_path: Path) -> None:
    """Five million empty lists, in 16 MB: 500 MB of objects."""
    hostile = b'[{"details": {"x": [' + b"[]," * 5_000_000
    folder = _written({**bundle, RESULTS: hostile}, tmp_path / "bundle")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="commas and brackets"):
            _ = Bundle(folder).results
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(hostile)


@pytest.mark.parametrize("more", [0, 1])
def test_a_page_shows_a_thousand_files_and_counts_the_rest(bundle: Files, tmp_path: Path, more: int) -> None:
    def change(made: dict[str, Any]) -> None:
        made["files"] = {f"file {n}": "0" * 64 for n in range(MOST_ROWS + more)}

    store = open_store(tmp_path / "data", create=True)
    prepared = _written(edited(bundle, PROVENANCE, change), store.data / "prepared")
    run, _ = store.add(prepared, new_event(State.SELF_REPORTED))
    with store.engine.connect() as connection:
        listed = find_run(connection, run)
    assert listed
    page = published_run_page(store.bundle(run), listed, Links())
    assert f"file {MOST_ROWS - 1}<" in page
    assert (f"file {MOST_ROWS}<" in page, "1 more file: see provenance.json" in page) == (False, more == 1)
    store.engine.dispose()
