"""Five of 8 ranks are damaged, each in another way: the numbers are those of the other three, and say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccl_bench import metrics
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, write_run
from ccl_bench.testing.damage import truncate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.result import Result

WORLD = 8


def cut_short(path: Path) -> None:
    """Leave the first part of a file, as when a job is killed while it writes."""
    truncate(path, 0.6)


def emptied(path: Path) -> None:
    """Leave nothing, as when a disk was full."""
    path.write_bytes(b"")


def replaced(path: Path) -> None:
    """Leave the page of an error in its place, as a download does."""
    path.write_text("<html>503 Service Unavailable</html>")


def zeroed(path: Path) -> None:
    """Leave zeros for bytes, as when a machine loses power."""
    path.write_bytes(bytes(path.stat().st_size))


def overwritten(path: Path) -> None:
    """Lay bytes that are no text over all between the first and the last of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:300] + b"\xff\xfe\x00" * (len(content) // 3) + content[-300:])


DAMAGED: dict[int, Callable[[Path], None]] = {
    3: cut_short,
    4: emptied,
    5: replaced,
    6: zeroed,
    7: overwritten,
}
OF_WHOLE_GROUPS = {"collective_efficiency"}
"""Metrics of calls whose members were all recorded: the group of ranks 0 to 3 is whole until rank 3 ends."""
OTHERS = sorted({*range(WORLD)} - {*DAMAGED})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a run of which five ranks are damaged, and one from which they are missing."""
    folder = tmp_path_factory.mktemp("damaged")
    damaged = folder / "damaged"
    write_run(Plan(dp_shard=2, tp=4, layers=1, steps=2, jitter_ns=5_000), damaged)
    missing = Path(shutil.copytree(damaged, folder / "missing"))
    for rank, damage in DAMAGED.items():
        damage(damaged / f"rank{rank}_trace.json")
        (missing / f"rank{rank}_trace.json").unlink()
    return {"damaged": damaged, "missing": missing}


@pytest.fixture(scope="module")
def results(runs: dict[str, Path]) -> dict[str, dict[str, Result]]:
    """Return every metric of both runs."""
    names = metrics.load().names()
    return {
        kind: {found.metric: found for found in evaluate(open_run(run), names, use_cache=False)}
        for kind, run in runs.items()
    }


def test_the_numbers_are_those_of_the_others(results: dict[str, dict[str, Result]]) -> None:
    """Only what compares ranks may use the steps of the rank that was cut short, and then it names that."""
    compared = 0
    for name, expected in results["missing"].items():
        found = results["damaged"][name]
        if name in OF_WHOLE_GROUPS:
            assert (found.status, expected.status) == ("ok", "not_measurable")
            assert "trace-left-out" in {finding.code for finding in found.findings}
            continue
        assert found.status == expected.status, name
        if found.ranks == OTHERS:
            assert found.value == expected.value
            compared += 1
        assert set(found.ranks) <= {*OTHERS, 3}
    assert compared > 20


def test_what_is_left_out_is_reported_with_every_number(results: dict[str, dict[str, Result]]) -> None:
    reported = {(f.code, f.rank): f.message for f in results["damaged"]["gpu_busy"].findings}

    assert reported["ranks-missing", None] == "3 of 8 ranks have no trace: 4, 5, 6"
    assert reported["trace-unrecognised", None] == (
        "these files look like traces but are empty or invalid: "
        "rank4_trace.json, rank5_trace.json, rank6_trace.json"
    )
    assert reported["trace-left-out", 3] == (
        "rank3_trace.json is left out: it is truncated, so the numbers of its steps would be too low"
    )
    assert reported["trace-unreadable", 7] == "no array of trace events in it"


def test_json_shows_whose_numbers_they_are(results: dict[str, dict[str, Result]]) -> None:
    from ccl_bench.result import to_json

    (busy,) = json.loads(to_json([results["damaged"]["gpu_busy"]]))
    assert busy["ranks"] == OTHERS
    assert len(busy["ranks"]) == 3
