"""What is installed is what was pinned, and fits together."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distributions

import pytest
from commands import ROOT

PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())


def plain(name: str) -> str:
    """Return the name of a package as all ways to write it are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_installed_package_that_is_pinned_has_its_pinned_version() -> None:
    pinned = {plain(name): version for name, version in PINS.items()}
    found = {plain(each.metadata["Name"]): each.version.partition("+")[0] for each in distributions()}
    shared = pinned.keys() & found.keys()
    assert len(shared) > 30
    assert {name: found[name] for name in shared} == {name: pinned[name] for name in shared}


def test_installed_packages_fit_together() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named pip" in done.stderr:
        pytest.skip("no pip in this environment: make test")
    assert done.returncode == 0, done.stdout
