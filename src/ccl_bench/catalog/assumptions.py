"""What metrics and diagnoses assume before their arithmetic, and what watches each assumption."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.catalog.data_files import load_data

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: where it is made, and what watches it."""

    made_in: tuple[str, ...]
    """Tables, inputs of diagnoses, and diagnoses."""
    assumes: str
    guards: tuple[str, ...] = ()
    """Codes of the findings that report where it does not hold."""
    refused: str = ""
    """Condition under which there is no number; empty if there is always one."""
    unwatched: str = ""
    """What neither a finding nor a refusal shows; empty if nothing is known to escape them."""


@cache
def assumptions() -> tuple[Assumption, ...]:
    """Return every assumption in the order of the data file."""
    return tuple(
        Assumption(
            tuple(row["made_in"]),
            row["assumes"],
            tuple(row.get("guards", ())),
            row.get("refused", ""),
            row.get("unwatched", ""),
        )
        for row in load_data("assumptions")["assumption"]
    )


def assumed_in(names: Collection[str]) -> list[Assumption]:
    """Return the assumptions that are made in some of the named tables, inputs and diagnoses."""
    return [assumption for assumption in assumptions() if {*assumption.made_in} & {*names}]
