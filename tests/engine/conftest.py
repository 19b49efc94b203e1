"""What the tests of engines share: generated runs, clusters, and a format that kills who reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_bench.testing import Plan, Style, write_run
from ccl_bench.trace import formats


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a generated run of 16 ranks, with a card."""
    folder = tmp_path_factory.mktemp("engine") / "run"
    write_run(
        Plan(dp_shard=4, tp=2, pp=2, microbatches=2, jitter_ns=5_000), folder, style=Style(compresses=True)
    )
    return folder


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """Return a cluster of two workers that no test harms."""
    from clusters import Cluster

    pytest.importorskip("distributed", reason="the extra `cluster` is not installed: make test")
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.worker()
        made.worker()
        made.has_workers(2)
        yield made
    finally:
        made.stop()


@pytest.fixture
def own_cluster(tmp_path: Path):
    """Return a cluster without workers that the test may do anything to."""
    from clusters import Cluster

    pytest.importorskip("distributed", reason="the extra `cluster` is not installed: make test")
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch):
    """Make the format known whose files kill who reads them."""
    from poison_format import POISON

    known = formats.load()
    monkeypatch.setitem(known._items, POISON.name, POISON)
    return POISON
