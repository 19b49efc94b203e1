"""What the tests of the native readers share."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import sanitized_library
from shared import made_once


@pytest.fixture(scope="session")
def watched_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the native readers, compiled so that they stop at the first wrong access to memory."""
    _, place = made_once(tmp_path_factory, "sanitized", lambda folder: str(sanitized_library(folder)))
    return Path(place)
