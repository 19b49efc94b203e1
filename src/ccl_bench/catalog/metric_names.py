"""Names of other programs and everyday words for metrics, and what to ask for in their place."""

from __future__ import annotations

import difflib
import re
from functools import cache

from ccl_bench.catalog import load_data


def suggestion(asked: str, likeness: float = 1.0) -> str:
    """Return what to ask for in place of a name or of words that no metric has; empty where unknown.

    Upper and lower case, spaces, hyphens and underscores make no difference. With a `likeness` below 1 the
    words may be misspelt.
    """
    close = difflib.get_close_matches(_plain(asked), _rows(), n=1, cutoff=likeness)
    if not close:
        return ""
    meant, row = close[0], _rows()[close[0]]
    names = " or ".join(row["ask_for"])
    differs = row.get("differs", "")
    found = f"ask for {names}" + (f": {differs}" if differs else "")
    return found if meant == _plain(asked) else f"for {meant!r}, {found}"


@cache
def _rows() -> dict[str, dict[str, list[str]]]:
    return {_plain(asked): row for row in load_data("metric_names")["name"] for asked in row["asked"]}


def _plain(asked: str) -> str:
    return re.sub(r"[\s_-]+", " ", asked).strip().casefold()
