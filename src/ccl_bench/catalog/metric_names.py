"""Names of other programs and everyday words for metrics, and what to ask for in their place."""

from __future__ import annotations

import re
from functools import cache

from ccl_bench.catalog import load_data


def suggestion(asked: str) -> str:
    """Return what to ask for in place of a name or of words that no metric has; empty where unknown.

    Upper and lower case, spaces, hyphens and underscores make no difference.
    """
    row = _rows().get(_plain(asked))
    if row is None:
        return ""
    names = " or ".join(row["ask_for"])
    differs = row.get("differs", "")
    return f"ask for {names}" + (f": {differs}" if differs else "")


@cache
def _rows() -> dict[str, dict[str, list[str]]]:
    return {_plain(asked): row for row in load_data("metric_names")["name"] for asked in row["asked"]}


def _plain(asked: str) -> str:
    return re.sub(r"[\s_-]+", " ", asked).strip().casefold()
