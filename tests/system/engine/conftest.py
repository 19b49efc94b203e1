"""What the tests of engines share: generated runs, clusters, and a format that kills who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusters import one_cluster

from ccl_bench import engine, metrics
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import to_json
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, Style, write_run
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from pathlib import Path

    from clusters import Cluster


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a generated run of four ranks, with a card."""
    folder = tmp_path_factory.mktemp("engine") / "run"
    write_run(Plan(dp_shard=2, pp=2, microbatches=2, jitter_ns=5_000), folder, style=Style(compresses=True))
    return folder


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a generated run of two ranks, with a card: one for each worker."""
    folder = tmp_path_factory.mktemp("engine") / "pair"
    write_run(Plan(dp_shard=2, jitter_ns=5_000), folder, style=Style(compresses=True))
    return folder


@pytest.fixture(scope="session")
def expected(run: Path) -> bytes:
    """Return what one trace after the other gives."""
    with engine.use_engine("local"):
        return to_json(evaluate(open_run(run), metrics.load().names(), jobs=1, use_cache=False))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """Return a cluster of two workers that no test harms."""
    with one_cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.worker()
        made.worker()
        made.has_workers(2)
        yield made


@pytest.fixture(scope="session")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    """Return a cluster whose workers come and go with the tests."""
    with one_cluster(tmp_path_factory.mktemp("scheduler")) as made:
        yield made


@pytest.fixture
def own_cluster(scheduler: Cluster):
    """Return a cluster without workers; the test may do anything to those that it starts."""
    yield scheduler
    scheduler.end_workers()


@pytest.fixture
def own_scheduler(tmp_path: Path):
    """Return a cluster without workers that the test may do anything to."""
    with one_cluster(tmp_path / "cluster") as made:
        yield made


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch):
    """Make the format known whose files kill who reads them."""
    from poison_format import POISON

    known = formats.load()
    monkeypatch.setitem(known._items, POISON.name, POISON)
    monkeypatch.setitem(known._spellings, POISON.name, POISON.name)
    return POISON
