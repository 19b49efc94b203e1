"""What ccl-bench installs: each file has a hash, each action a commit, each package a permitted licence."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest
from checkout import ROOT
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LICENCES = tomllib.loads((ROOT / "tests/house/licences.toml").read_text(encoding="utf-8"))
HASHED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {_plain(name): version for name, version in (line.split("==") for line in lines)}


def _hashed(file: str = "hashes.txt") -> dict[str, str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return {_plain(name): version for name, version, _ in HASHED.findall(text)}


def _needed(packages: set[str], extras: Iterable[str] = ()) -> set[str]:
    """Return what packages need, with these extras, and what that needs, as the packages here say."""
    found: set[str] = set()
    left = [(package, extra) for package in packages for extra in ("", *extras)]
    seen = set(left)
    while left:
        name, extra = left.pop()
        for text in importlib.metadata.requires(name) or []:
            need = Requirement(text)
            if need.marker and not need.marker.evaluate({"extra": extra}):
                continue
            found.add(_plain(need.name))
            new = {(_plain(need.name), each) for each in ("", *need.extras)} - seen
            seen |= new
            left += new
    return found


@pytest.mark.parametrize("file", ["hashes.txt", "hashes-build.txt"])
def test_hashes_hold_names_versions_and_hashes_only(file: str) -> None:
    assert HASHED.sub("", (ROOT / file).read_text(encoding="utf-8")) == ""


def test_every_package_that_is_installed_for_a_user_has_hashes_of_its_pinned_version() -> None:
    hashed, pins = _hashed(), _pins()
    extras = importlib.metadata.metadata("ccl-bench").get_all("Provides-Extra") or []
    assert _needed({"ccl-bench"}, extras) - {"ccl-bench"} - hashed.keys() == set()
    pins.setdefault("setuptools", hashed["setuptools"])  # no freeze names it
    assert {name: version for name, version in hashed.items() if pins.get(name) != version} == {}


def test_every_package_that_builds_ccl_bench_has_hashes_of_its_pinned_version() -> None:
    hashed, pins = _hashed("hashes-build.txt"), _pins()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {_plain(Requirement(text).name) for text in project["build-system"]["requires"]}
    assert (named | _needed(named) | {"pip"}) - hashed.keys() == set()
    pins.setdefault("pip", hashed["pip"])  # no freeze names it
    assert {name: version for name, version in hashed.items() if pins.get(name) != version} == {}


USED = re.compile(r"^\s*(?:- )?(?:uses|image|rev):\s*(?P<what>\S+)", re.MULTILINE)
EXACT = re.compile(r"(?:\S+@)?(?:[0-9a-f]{40}|COMMIT)|\S+@sha256:(?:[0-9a-f]{64}|DIGEST)")
"""A commit or a digest; the manual has a word where its reader must choose one."""


def _inexact(text: str) -> list[str]:
    """Return the actions, images and revisions that a pipeline names by a tag or branch."""
    return [each["what"] for each in USED.finditer(text) if not EXACT.fullmatch(each["what"])]


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_pipelines_name_actions_and_images_by_commit_and_digest() -> None:
    pages = _tracked(
        "action.yml", "actions", ".github", ".gitlab-ci.yml", "docs/*.md", "README.md", "*pre-commit*"
    )
    named = {path.name: USED.findall(path.read_text(encoding="utf-8")) for path in pages}
    assert sum(map(len, named.values())) >= 5
    inexact = {path.name: _inexact(path.read_text(encoding="utf-8")) for path in pages}
    assert {name: found for name, found in inexact.items() if found} == {}


@pytest.mark.parametrize(
    "named",
    ["uses: actions/checkout@v4", "  - uses: actions/checkout@main", "image: python:3.12", "rev: v1.0"],
)
def test_a_tag_is_found(named: str) -> None:
    assert len(_inexact(f"{named}\n")) == 1


INSTALLS = re.compile(r"\bpip\S*(?: --python \S+)? (?:install|wheel|download)\b.*")


def _unhashed(text: str) -> list[str]:
    """Return the commands that install packages and check no hashes; one that builds installs nothing."""
    return [
        command
        for command in INSTALLS.findall(text)
        if "--require-hashes" not in command
        and not ("wheel" in command and {"--no-deps", "--no-build-isolation"} <= {*command.split()})
    ]


def test_pipelines_and_images_install_with_hashes() -> None:
    places = _tracked("action.yml", "actions", "Dockerfile", ".github", "scripts/*.sh")
    texts = {path.name: path.read_text(encoding="utf-8") for path in places}
    assert len(INSTALLS.findall(texts["install_hashed.sh"])) == 3
    assert {name: found for name, text in texts.items() if (found := _unhashed(text))} == {}


@pytest.mark.parametrize(
    "command",
    ["python -m pip install --quiet .", "pip wheel --no-deps .", "pip install -c constraints.txt ."],
)
def test_an_installation_without_hashes_is_found(command: str) -> None:
    assert len(_unhashed(f"run: {command}\n")) == 1


def _licences(name: str) -> set[str]:
    """Return the licences that an installed package states, by SPDX's names where they are known."""
    stated = importlib.metadata.metadata(name)
    classified = [
        each.split(" :: ")[-1] for each in stated.get_all("Classifier") or [] if "License ::" in each
    ]
    written = stated.get("License-Expression") or classified or (stated.get("License") or "").strip()
    texts = [written] if isinstance(written, str) else written
    spelled = [LICENCES["spellings"].get(text, text) for text in texts]
    return {word for text in spelled for word in re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", text) if word}


def test_every_pinned_package_has_a_permitted_licence() -> None:
    installed = {_plain(each.metadata["Name"]) for each in importlib.metadata.distributions()}
    looked_at = (_pins().keys() | _hashed().keys()) & installed
    assert len(looked_at) > 100
    permitted = {*LICENCES["permitted"]}
    refused = {name: found for name in looked_at if not (found := _licences(name)) or not found <= permitted}
    assert {name: found for name, found in refused.items() if name not in LICENCES["exceptions"]} == {}
    assert LICENCES["exceptions"].keys() & installed <= refused.keys(), "an exception that none needs"
