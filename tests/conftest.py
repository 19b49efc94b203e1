"""What every test may ask for: the real traces, a cache of its own, a browser, and a database.

Every process that runs tests imports all of their files. What takes long to import, such as JAX, jsonschema,
mcp and torch, is imported by the tests that use it.
"""

import contextlib
import gc
import itertools
import os
import sys
import uuid
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import browsers
import pytest
from databases import create_database, postgresql
from hypothesis import HealthCheck, settings
from shared import left_out_of_quick, shared_cache_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Each of a thousand processes would compile every module that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# jsonschema compiles a grammar of addresses where it finds this package, for a second; none is checked here.
sys.modules.setdefault("rfc3987_syntax", None)

# Several processes share the processors, and most tables here are small: a second thread of polars costs more
# than it gives. Commands that tests start have as many threads as a user's.
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("POLARS_MAX_THREADS", "1")
    import polars as pl  # it looks at the variable now and never again

# Each of a million small queries would make the flags that all of them have, and look whether it is
# monitored.
pl.QueryOptFlags._eager = staticmethod(cache(pl.QueryOptFlags._eager))  # type: ignore[method-assign]
with contextlib.suppress(ImportError):  # before polars 2 there is none
    from polars.lazyframe.engine_config import _IN_MEMORY_ENGINE

    _IN_MEMORY_ENGINE.monitoring = False

# A collection of garbage looks through all that a session keeps, such as recorded traces.
gc.set_threshold(300_000, 20, 100)

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("steady"), derandomize=False, max_examples=1000)
settings.load_profile("steady")

CORPUS_VARIABLE = "CCL_BENCH_CORPUS"

_numbers = itertools.count()  # `mktemp` would look through all former folders to find the next one


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of the search for garbage: it stays to the end."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Look for garbage that was left open once: pytest would look through all that is kept three times."""
    gc.collect()
    gc.freeze()


TOGETHER = (
    "tests/analysis/", "tests/comparison/", "tests/hostile/web/", "tests/house/", "tests/metrics/",
    "tests/report/", "tests/system/engine/", "tests/system/slurm/",
)  # fmt: skip
"""Folders whose modules share parsed modules, measured runs, servers, clusters, and the one Slurm here."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Slurm, whose tests wait for minutes: at the end nothing would be left to do meanwhile."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/system/slurm/"))


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Use a process more than there are cores: tests wait for Slurm, browsers, servers and each other."""
    return (yield) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep the tests of a module or folder in one process, so that what they make once is made once."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class Modules(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), "")
            return folder or nodeid.partition("::")[0]

    return Modules(config, log)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the folder of real traces; tests that need it are skipped where it is not given."""
    place = os.environ.get(CORPUS_VARIABLE)
    if not place:
        pytest.skip(f"set {CORPUS_VARIABLE} to the folder of real traces")
    return Path(place)


SHARING = tuple(
    f"tests/{folder}/"
    for folder in (
        "analysis", "api", "chakra", "cli", "comparison", "diagnosis", "docs", "instructions",
        "integrations", "leaderboard", "metrics", "oracles", "publishing", "report", "timeline", "tools",
    )
)  # fmt: skip
"""Folders whose tests are not about caches: all share one, in which the bundled runs are read once."""


@pytest.fixture(scope="session", autouse=True)
def cache_of_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let what is made once for several tests keep its tables where the tests find them."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CCL_BENCH_CACHE", str(shared_cache_folder(tmp_path_factory)))
        yield


@pytest.fixture(autouse=True)
def own_cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Keep the tables of each test apart from the user's, and from those of tests outside of `SHARING`."""
    if request.node.nodeid.startswith(SHARING):
        place = shared_cache_folder(tmp_path_factory)
    else:
        place = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("CCL_BENCH_CACHE", str(place))
    return place


@pytest.fixture
def shared_cache(
    own_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Let a test take tables of runs that nobody changes as others kept them: reading takes longest."""
    place = shared_cache_folder(tmp_path_factory)
    monkeypatch.setenv("CCL_BENCH_CACHE", str(place))
    return place


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Return a real browser to open pages in."""
    left_out_of_quick("opens pages in a browser")
    browsers.program()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = browsers.launched(started)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """Return the address of a PostgreSQL server, to be completed with the name of a database."""
    left_out_of_quick("starts PostgreSQL")
    with postgresql() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str | None:
    """Return the address of an empty database, None for the one in the data directory."""
    if request.param == "sqlite":
        return None
    return create_database(request.getfixturevalue("postgresql_server"), f"test_{uuid.uuid4().hex}")
