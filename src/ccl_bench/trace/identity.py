"""Whose trace a file is: its rank and its recording window, from what the file and its name say."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_RANK_IN_NAME = (
    re.compile(r"(?:^|[^a-z])(?:rank|worker|gpu|proc)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(
        r"(?:kineto|trace|(?<![a-z])e[tg]|profile|nsys|report)[-_.]?(?:trace[-_.]?)?(\d{1,5})(?=\.|$)",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?<!iteration)(?<!iter)(?<!step)[-_](\d{1,5})"
        r"(?=(?:\.pt)?(?:\.trace)?\.(?:json|sqlite|pickle|pkl|nsys-rep|qdrep))",
        re.IGNORECASE,
    ),
)
"""Patterns in order of how much they say; the last sees any number before the suffix that counts no steps."""

_WINDOW_IN_PATH = re.compile(r"(?:iteration|iter|step)[-_](\d{1,18})(?!\d)", re.IGNORECASE)
_TIMESTAMP_IN_NAME = re.compile(r"\.(\d{13,18}|[1-8]\d{18})\.pt\.trace\.json")


def rank_in_name(relative: str) -> int | None:
    """Return the rank that a file name carries, or None."""
    name = PurePosixPath(relative).name
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(name):
            return int(match[1])
    return None


def window_in_path(relative: str) -> int | None:
    """Return the number of the recording window (`iteration_<n>`) that a path carries, or None."""
    numbers = _WINDOW_IN_PATH.findall(relative)
    if numbers:
        return int(numbers[-1])
    stamp = _TIMESTAMP_IN_NAME.search(relative)
    return int(stamp[1]) if stamp else None
