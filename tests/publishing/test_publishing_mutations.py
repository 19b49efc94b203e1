"""A bundle in which one value is another is refused, or every page, answer and file can be made of it.

`MUTATIONS_EVERY=1` tries all mutations, which takes an hour; the tests of every day try a sample.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from mutated_bundles import mutations
from publishing_archives import CARD, PROVENANCE, REPORT, RESULTS, edited

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import Limits
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.leaderboard.site import write_site
from ccl_bench.leaderboard.store import State, new_event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publishing_archives import Files
    from publishing_server import Leaderboard

    from ccl_bench.leaderboard.store import Store

EVERY = int(os.environ.get("MUTATIONS_EVERY", "0"))
SAMPLES = {PROVENANCE: 211, RESULTS: 193, REPORT: 997}
"""Which mutations of a file are tried: one in so many."""
SOME = {"throughput_tokens_sec", "gpu_busy", "traffic_distribution", "iteration_wall_clock_time"}
"""Metrics whose results are mutated, for results are alike."""


@pytest.fixture(scope="module")
def short(bundle: Files) -> Files:
    """Return a bundle of a few results."""

    def change(results: list[Any]) -> list[Any]:
        return [result for result in results if result["metric"] in SOME]

    files = {**bundle, RESULTS: json.dumps(change(json.loads(bundle[RESULTS]))).encode()}
    return edited(files, REPORT, lambda report: report.update(results=change(report["results"])))


def _published(store: Store, files: Files) -> str | None:
    """Return the run of a bundle that is accepted."""
    prepared = store.data / "prepared"
    prepared.mkdir()
    for name, content in files.items():
        (prepared / name).write_bytes(content)
    try:
        validate_bundle(prepared, Limits())
    except InputError:
        shutil.rmtree(prepared)
        return None
    run, _ = store.add(prepared, new_event(State.SELF_REPORTED, "mallory"))
    return run


@pytest.mark.parametrize("name", [PROVENANCE, RESULTS, REPORT])
def test_everything_is_drawn_of_whatever_is_accepted(
    short: Files, opened: Callable[..., Leaderboard], tmp_path: Path, name: str
) -> None:
    leaderboard = opened()
    store = leaderboard.store
    files = short if name == REPORT else {each: short[each] for each in (CARD, PROVENANCE, RESULTS)}
    first = _published(store, files)
    assert first
    accepted = 0
    for what, changed in mutations(files, name, EVERY or SAMPLES[name]):
        run = _published(store, changed)
        if run is None:
            continue
        accepted += 1
        assert store.refused == {}, what
        key = leaderboard.asked("GET", f"runs/{run}").json()["run"]["workload"]
        pages = [f"runs/{run}", f"workloads/{key}", f"compare?run={first}&run={run}", f"?workload={key}"]
        for page in (*pages, f"api/v1/runs?workload={key}", f"api/v1/runs.csv?workload={key}"):
            assert leaderboard.page(page).status_code == 200, (what, page)
        if name == REPORT:
            assert leaderboard.page(f"runs/{run}/report").status_code == 200, what
    assert accepted
    written = write_site(store, tmp_path / "site")
    assert (written.runs, written.left_out) == (store.count, ())
