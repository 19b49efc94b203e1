"""The tools of this checkout, importable from anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shared import shared_cache_folder

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def sharded() -> Path:
    """Return the example run with FSDP2 and tensor parallelism."""
    return ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tables of runs for all tests of tools, apart from the user's."""
    place = shared_cache_folder(tmp_path_factory)
    monkeypatch.setenv("CCL_BENCH_CACHE", str(place))
    return place
