"""What a host does instead of launching work, by the name of a range or call."""

from __future__ import annotations

import re
from functools import cache

from ccl_bench.catalog.data_files import load_data

DATA_LOADING = "data loading"
GARBAGE_COLLECTION = "garbage collection"
COMPILATION = "compilation"
MODULE_LOADING = "module loading"


@cache
def stall_of_range(name: str) -> str | None:
    """Return the kind of stall of a range or operator by name; None for ordinary work."""
    return _first("range", name)


@cache
def stall_of_call(name: str) -> str | None:
    """Return the kind of stall of a call of the runtime by name; None for ordinary calls."""
    return _first("call", name)


def _first(source: str, name: str) -> str | None:
    return next((kind for where, pattern, kind in _rules() if where == source and pattern.search(name)), None)


@cache
def _rules() -> list[tuple[str, re.Pattern[str], str]]:
    return [(row["in"], re.compile(row["match"]), row["kind"]) for row in load_data("host_stalls")["stall"]]
