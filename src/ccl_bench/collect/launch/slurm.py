"""Where `srun`'s own options end and the program begins."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SRUN = "srun"


def is_srun(command: Sequence[str]) -> bool:
    """Whether a command starts tasks of Slurm."""
    return bool(command) and PurePath(command[0]).name == SRUN


def split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return `srun` with its options, and the program with its arguments."""
    position = 1
    while position < len(command) and command[position].startswith("-") and command[position] != "-":
        word = command[position]
        position += 1
        if word == "--":
            break
        position += _takes_next(word)
    return list(command[:position]), list(command[position:])


def _takes_next(word: str) -> bool:
    """Whether the value of an option stands in the next word."""
    if word.startswith("--"):
        name = word[2:]
        return "=" not in name and not any(flag.startswith(name) for flag in _options()["flags"])
    for place, letter in enumerate(word[1:], start=1):
        if letter in _options()["short_attached"]:
            return False
        if letter not in _options()["short_flags"]:
            return place == len(word) - 1
    return False


@cache
def _options() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("slurm.toml").read_text(encoding="utf-8"))
