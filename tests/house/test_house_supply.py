"""What ccl-bench installs: each file has a hash, and each package a permitted licence."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

from checkout import ROOT
from packaging.requirements import Requirement

LICENCES = tomllib.loads((ROOT / "tests/house/licences.toml").read_text(encoding="utf-8"))
HASHED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {_plain(name): version for name, version in (line.split("==") for line in lines)}


def _hashed() -> dict[str, str]:
    text = (ROOT / "hashes.txt").read_text(encoding="utf-8")
    return {_plain(name): version for name, version, _ in HASHED.findall(text)}


def _needed() -> set[str]:
    """Return what ccl-bench needs with all extras, and what that needs, as the packages here say."""
    found: set[str] = set()
    extras = importlib.metadata.metadata("ccl-bench").get_all("Provides-Extra") or []
    left = [("ccl-bench", extra) for extra in ("", *extras)]
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
    return found - {"ccl-bench"}


def test_hashes_hold_names_versions_and_hashes_only() -> None:
    text = (ROOT / "hashes.txt").read_text(encoding="utf-8")
    assert HASHED.sub("", text) == ""


def test_every_package_that_is_installed_for_a_user_has_hashes_of_its_pinned_version() -> None:
    hashed, pins = _hashed(), _pins()
    assert _needed() - hashed.keys() == set()
    pins.setdefault("setuptools", hashed["setuptools"])  # no freeze names it
    assert {name: version for name, version in hashed.items() if pins.get(name) != version} == {}


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
