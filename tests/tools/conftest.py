"""The tools of this checkout, importable from anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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
