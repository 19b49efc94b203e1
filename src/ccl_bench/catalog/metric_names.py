"""Names of metrics elsewhere."""

from __future__ import annotations

import difflib
import re
from functools import cache

from ccl_bench.catalog.data_files import load_data


def suggestion(words: str, likeness: float = 1.0) -> str:
    """Return the advice for a name or words that no metric has; empty if there is none.

    Upper and lower case, spaces, hyphens and underscores make no difference. With a `likeness` below 1 the
    words may be misspelt.
    """
    close = difflib.get_close_matches(_plain(words), _rows(), n=1, cutoff=likeness)
    if not close:
        return ""
    match, row = close[0], _rows()[close[0]]
    names = " or ".join(row["ask_for"])
    differs = row.get("differs", "")
    advice = f"ask for {names}" + (f": {differs}" if differs else "")
    return advice if match == _plain(words) else f"for {match!r}, {advice}"


@cache
def _rows() -> dict[str, dict[str, list[str]]]:
    return {_plain(spelling): row for row in load_data("metric_names")["name"] for spelling in row["asked"]}


def _plain(words: str) -> str:
    return re.sub(r"[\s_-]+", " ", words).strip().casefold()
