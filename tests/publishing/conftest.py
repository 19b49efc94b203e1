"""The example run as a bundle, leaderboards to send it to, and tables that were read once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from commands import EXAMPLE, recorded_by
from databases import create_database
from publishing_archives import files_of
from publishing_server import Leaderboard
from shared import made_once

from ccl_bench.leaderboard.bundle.upload import Upload, UploadRequest, prepare_upload
from ccl_bench.leaderboard.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from publishing_archives import Files


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example run as one of its ranks recorded it."""

    def make(folder: Path) -> None:
        recorded_by((0,), folder / EXAMPLE.name)

    return made_once(tmp_path_factory, "published runs", make)[0] / EXAMPLE.name


@pytest.fixture(scope="session")
def parcel(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Upload:
    """Return what leaves the machine when the run is published with its traces."""
    wanted = UploadRequest(str(recorded), with_traces=True, use_cache=False)
    return prepare_upload(wanted, tmp_path_factory.mktemp("parcel"))


@pytest.fixture(scope="session")
def whole(parcel: Upload) -> Files:
    """Return the files of the run's bundle, with its traces."""
    return files_of(parcel)


@pytest.fixture(scope="session")
def bundle(whole: Files) -> Files:
    """Return the files of the run's bundle, without its traces."""
    return {name: content for name, content in whole.items() if not name.startswith("run/")}


@pytest.fixture(scope="session")
def with_tables(postgresql_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of a database whose tables are there, to be copied."""
    address = create_database(postgresql_server, "with_tables")
    open_store(tmp_path_factory.mktemp("with tables"), address).engine.dispose()
    return "with_tables"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str | None:
    """Return the address of a database that holds nothing, None for the one in the data directory."""
    if request.param == "sqlite":
        return None
    server, template = map(request.getfixturevalue, ("postgresql_server", "with_tables"))
    return create_database(server, f"test_{uuid.uuid4().hex}", template)


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Callable[..., Leaderboard]]:
    """Return a function that makes a leaderboard with a file of settings."""
    made: list[Leaderboard] = []

    def make(settings: str = "", *, database: str | None = None, workers: int = 0) -> Leaderboard:
        made.append(Leaderboard(tmp_path / f"data-{len(made)}", database, workers))
        if settings:
            (made[-1].data / "publishing.toml").write_text(settings, encoding="utf-8")
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def started(new: Callable[..., Leaderboard]) -> Callable[..., Leaderboard]:
    """Return a function that starts the server of a new leaderboard as a process, which may be killed."""

    def start(settings: str = "", **how: Any) -> Leaderboard:
        made = new(settings, **how)
        made.start()
        return made

    return start


@pytest.fixture
def opened(new: Callable[..., Leaderboard]) -> Callable[..., Leaderboard]:
    """Return a function that serves a new leaderboard from this process, which costs no start."""

    def serve(settings: str = "", **how: Any) -> Leaderboard:
        made = new(settings, **how)
        made.serve()
        return made

    return serve


@pytest.fixture
def unserved(tmp_path: Path, database: str | None) -> Iterator[Leaderboard]:
    """Return a leaderboard without a server, on either database."""
    made = Leaderboard(tmp_path / "data", database)
    yield made
    made.close()


@pytest.fixture(scope="module")
def leaderboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaderboard]:
    """Return a leaderboard that the tests of a file share."""
    made = Leaderboard(tmp_path_factory.mktemp("leaderboard"))
    made.serve()
    yield made
    made.close()
