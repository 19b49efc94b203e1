"""Environment variables worth keeping: those that change computing or communicating, and never a secret."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on the list, by name."""
    lists = _lists()
    return {
        name: value
        for name, value in sorted(environment.items())
        if _matches(name, lists["relevant"]) and not _matches(name, [*lists["never"], *lists["personal"]])
    }


def of_communication(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the relevant variables that tune the communication library."""
    patterns = _lists()["communication"]
    return {name: value for name, value in relevant(environment).items() if _matches(name, patterns)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)


@cache
def _lists() -> Mapping[str, Sequence[str]]:
    text = resources.files(__package__).joinpath("variables.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
