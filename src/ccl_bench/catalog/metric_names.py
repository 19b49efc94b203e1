"""What is known about metrics: names elsewhere, and the assumptions before their arithmetic."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.catalog.data_files import load_data

if TYPE_CHECKING:
    from collections.abc import Collection


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


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: the tables in which it is made, and what watches it."""

    tables: tuple[str, ...]
    assumes: str
    guards: tuple[str, ...]
    """Codes of the findings that report where it does not hold."""
    refused: str
    """Condition under which there is no number; empty if there is always one."""


@cache
def assumptions() -> tuple[Assumption, ...]:
    """Return every assumption in the order of the data file."""
    return tuple(
        Assumption(tuple(row["tables"]), row["assumes"], tuple(row["guards"]), row.get("refused", ""))
        for row in load_data("assumptions")["assumption"]
    )


def assumed_of(tables: Collection[str]) -> list[Assumption]:
    """Return the assumptions that are made in some of `tables`."""
    return [assumption for assumption in assumptions() if {*assumption.tables} & {*tables}]
