"""What every test may ask for: the real traces, and a cache of its own."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

CORPUS_VARIABLE = "CCL_BENCH_CORPUS"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the folder of real traces; tests that need it are skipped where it is not given."""
    place = os.environ.get(CORPUS_VARIABLE)
    if not place:
        pytest.skip(f"set {CORPUS_VARIABLE} to the folder of real traces")
    return Path(place)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tables of each test apart from the user's and from those of other tests."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CCL_BENCH_CACHE", str(place))
    return place
