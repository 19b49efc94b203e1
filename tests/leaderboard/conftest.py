"""Stores for tests of the leaderboard, on SQLite and on PostgreSQL."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from commands import ROOT, invoke
from databases import create_database
from leaderboard_browser import Browsing, browsing
from shared import made_once

from ccl_bench.leaderboard.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def shared_database(postgresql_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a database whose tables are there; who uses it empties them first."""
    address = create_database(postgresql_server, "shared")
    open_store(tmp_path_factory.mktemp("shared"), address).engine.dispose()
    return address


@pytest.fixture(params=["sqlite", "postgresql"])
def index_database(request: pytest.FixtureRequest) -> str | None:
    """Return the address of a database for an index, whatever it holds."""
    return None if request.param == "sqlite" else request.getfixturevalue("shared_database")


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty data directory whose tables are there, to be copied: making them takes longest."""
    data = tmp_path_factory.mktemp("empty") / "data"
    open_store(data, create=True).engine.dispose()
    return data


@pytest.fixture
def store(tmp_path: Path, index_database: str | None, empty: Path) -> Iterator[Store]:
    """Return an empty store on either database."""
    if index_database is None:
        shutil.copytree(empty, tmp_path / "data")
    made = open_store(tmp_path / "data", index_database, create=True)
    made.catch_up()
    yield made
    made.engine.dispose()


@pytest.fixture
def small(tmp_path: Path, empty: Path) -> Iterator[Store]:
    """Return an empty store on SQLite, for what is the same on every database."""
    made = open_store(shutil.copytree(empty, tmp_path / "data"))
    made.catch_up()
    yield made
    made.engine.dispose()


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a bundled run as data."""

    def make(folder: Path) -> None:
        run = ROOT / "examples" / "runs" / "llama-tiny-pp4-gloo"
        done = invoke(["ccl-bench", "report", str(run), "-f", "json", "-o", str(folder / "report.json")])
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "report of a board", make)[0] / "report.json"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browsing]:
    """Return a real browser."""
    with browsing() as found:
        yield found
