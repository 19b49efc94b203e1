"""Titles of metrics on pages: words instead of the names that programs use."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache

from ccl_bench.leaderboard.store.board_numbers import board_numbers
from ccl_bench.leaderboard.store.rows import known_metrics


@cache
def metric_titles() -> dict[str, str]:
    """Return the title of each metric of this program, by name."""
    return tomllib.loads((pkgutil.get_data(__package__, "metric_titles.toml") or b"").decode())


def metric_title(name: str) -> str:
    """Return the title of a metric; for one that others defined, its name in words, and who did."""
    if name in board_numbers():
        return board_numbers()[name]["title"]
    source, _, local = name.rpartition(".")
    words = local.replace("_", " ")
    title = metric_titles().get(name) or words[:1].upper() + words[1:]
    return f"{title} ({source})" if source else title


def metric_hint(name: str) -> str:
    """Return the tooltip of a metric's title: its name, and what it is if this program defines it."""
    definition = known_metrics().get(name)
    if name in board_numbers():
        return f"{name}: {board_numbers()[name]['formula']}"
    return f"{name}: {definition.summary}" if definition else name
