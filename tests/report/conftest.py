"""What the tests of reports share: observed runs, and a real browser to open pages in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from observations import observation_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from ccl_bench.result.observation import Observation

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Switches with which Chromium runs as root and asks nobody for anything."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return Debian's Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: make services")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=list(QUIET))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def example() -> Path:
    """Return the example run with FSDP2 and tensor parallelism, four ranks, three recorded steps."""
    return EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"


@pytest.fixture(scope="session")
def observed(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Observation:
    """Return the example run, observed once for all tests."""
    before = os.environ.get("CCL_BENCH_CACHE")
    os.environ["CCL_BENCH_CACHE"] = str(tmp_path_factory.mktemp("observed"))
    try:
        return observation_of(example)
    finally:
        os.environ.pop("CCL_BENCH_CACHE")
        if before is not None:
            os.environ["CCL_BENCH_CACHE"] = before
