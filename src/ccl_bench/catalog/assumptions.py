"""What is assumed before the arithmetic of a metric, and the findings that watch it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.catalog import load_data

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: the tables in which it is made, and what watches it."""

    tables: tuple[str, ...]
    assumes: str
    guards: tuple[str, ...]
    """Codes of the findings that report where it does not hold."""
    refused: str
    """In which case there is no number instead; empty where it never comes to that."""


@cache
def assumptions() -> tuple[Assumption, ...]:
    """Return every assumption in the order of the data file."""
    return tuple(
        Assumption(tuple(row["tables"]), row["assumes"], tuple(row["guards"]), row.get("refused", ""))
        for row in load_data("assumptions")["assumption"]
    )


def assumed_of(tables: Collection[str]) -> list[Assumption]:
    """Return the assumptions that are made in some of `tables`."""
    return [found for found in assumptions() if {*found.tables} & {*tables}]
