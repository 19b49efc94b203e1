"""What several tests look at and is made once, also where tests run in several processes."""

from __future__ import annotations

import fcntl
import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def left_out_of_quick(what: str) -> None:
    """Skip a test that does something for which `make test-quick` has no time."""
    if os.environ.get("CCL_BENCH_QUICK"):
        pytest.skip(f"{what}: make test does")


def to_record(module: str) -> None:
    """Skip a test that records programs of a module where it is not installed, or takes too long."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make test")
    left_out_of_quick(f"records {module}")


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that every process of this session of pytest sees.

    Its path is one that a shell, a glob or a URL would trip over.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared + recorded"
    folder.mkdir(exist_ok=True)
    return folder


def shared_cache_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a cache for all tests that are not about caches: tables of bundled runs, the script of pages."""
    return shared_folder(factory) / "cache"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """Return the folder of that name, and what `make` returned when it filled it, which JSON can hold.

    Whoever asks first makes it, and the others wait.
    """
    place = shared_folder(factory)
    folder, said = place / name, place / f"{name}.json"
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            folder.mkdir(exist_ok=True)
            said.write_text(json.dumps(make(folder)))
    return folder, json.loads(said.read_text())
