"""What the pages of the manual share: tables that were read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shared import shared_cache_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tables of bundled runs for all pages, apart from the user's."""
    place = shared_cache_folder(tmp_path_factory)
    monkeypatch.setenv("CCL_BENCH_CACHE", str(place))
    return place
