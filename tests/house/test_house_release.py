"""Version, changelog and pinned dependencies agree with each other."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

from checkout import ROOT

import ccl_bench

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


def test_every_declared_dependency_is_pinned() -> None:
    project = PROJECT["project"]
    optional = [need for needs in project["optional-dependencies"].values() for need in needs]
    groups = PROJECT["dependency-groups"].values()
    grouped = [need for needs in groups for need in needs if isinstance(need, str)]
    declared = {
        _normalised(re.match(r"[\w.-]+", need)[0]) for need in [*project["dependencies"], *optional, *grouped]
    }
    assert declared - {_normalised(line.split("==")[0]) for line in PINNED} == set()
