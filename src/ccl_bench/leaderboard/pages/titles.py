"""Titles of metrics on pages: words instead of the names that programs use."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache

from ccl_bench.leaderboard.store.rows import known_metrics


@cache
def metric_titles() -> dict[str, str]:
    """Return the title of each metric of this program, by name."""
    return tomllib.loads((pkgutil.get_data(__package__, "metric_titles.toml") or b"").decode())


def metric_title(name: str) -> str:
    """Return the title of a metric; for one that others defined, its name in words."""
    words = name.replace("_", " ")
    return metric_titles().get(name) or words[:1].upper() + words[1:]


def metric_hint(name: str) -> str:
    """Return the tooltip of a metric's title: its name, and what it is if this program defines it."""
    definition = known_metrics().get(name)
    return f"{name}: {definition.summary}" if definition else name
