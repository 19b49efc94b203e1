"""Version, changelog and pinned dependencies agree with each other."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest
from checkout import ROOT

import ccl_bench

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_version_is_the_same_everywhere() -> None:
    declared = PROJECT["project"]["version"]
    assert ccl_bench.__version__ == declared == importlib.metadata.version("ccl-bench")


def test_the_changelog_says_what_is_not_released_yet() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = changelog.split("## Unreleased", 1)[1].split("\n## ", 1)[0]
    assert re.search(r"^- \S.*\.$", unreleased, flags=re.MULTILINE)


def test_constraints_hold_names_and_versions_only() -> None:
    assert [line for line in PINNED if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def _wheel_built_in(folder: Path, source: Path, *, mask: int, days: int) -> bytes:
    """Return the wheel of a source package unpacked in a folder, as on another machine some days later."""
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--file", source], cwd=folder, check=True)
    (project,) = folder.iterdir()
    for path in project.rglob("*"):
        path.chmod(path.stat().st_mode & ~mask)
        os.utime(path, (86_400 * days, 86_400 * days))
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "out"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = (folder / "out").iterdir()
    return wheel.read_bytes()


def test_two_builds_of_one_source_are_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: make test")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (source,) = tmp_path.glob("*.tar.gz")
    one = _wheel_built_in(tmp_path / "one", source, mask=0o022, days=11_000)
    other = _wheel_built_in(tmp_path / "another place", source, mask=0o077, days=12_345)
    assert hashlib.sha256(one).digest() == hashlib.sha256(other).digest()
    libraries = [name for name in zipfile.ZipFile(io.BytesIO(one)).namelist() if name.endswith("librows.so")]
    assert len(libraries) == (shutil.which("gcc") is not None)


def test_every_declared_dependency_is_pinned() -> None:
    project = PROJECT["project"]
    optional = [need for needs in project["optional-dependencies"].values() for need in needs]
    groups = PROJECT["dependency-groups"].values()
    grouped = [need for needs in groups for need in needs if isinstance(need, str)]
    declared = {
        _normalised(re.match(r"[\w.-]+", need)[0]) for need in [*project["dependencies"], *optional, *grouped]
    }
    assert declared - {_normalised(line.split("==")[0]) for line in PINNED} == set()
