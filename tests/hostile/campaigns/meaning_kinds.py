"""A kind of damage of meaning, and how a change of one trace becomes one of a run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meaning_runs import Document, InapplicableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from meaning_runs import Traces

    OfTrace = Callable[[Document, random.Random], None]
    OfRun = Callable[[Traces, random.Random], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One way in which a run can mean something else than what happened."""

    family: str
    """`lost`, `doubled`, `shifted`, `scaled`, `swapped`, `mixed`, `truncated` or `wrong field`."""
    name: str
    apply: OfRun
    is_neutral: bool = False
    """Whether the run means the same afterwards."""


def on_one(change: OfTrace) -> OfRun:
    """Return a change of the trace of one rank by chance."""

    def apply(run: Traces, chance: random.Random) -> None:
        change(run.document(chance.choice(run.names)), chance)

    return apply


def on_all(change: OfTrace) -> OfRun:
    """Return the same change of the trace of each of several ranks."""

    def apply(run: Traces, chance: random.Random) -> None:
        seed = chance.random()
        for name in several(run):
            change(run.document(name), random.Random(seed))

    return apply


def several(run: Traces) -> list[str]:
    """Return the traces of the ranks; InapplicableError for a single one."""
    if len(run.names) < 2:
        raise InapplicableError
    return run.names


def of_one(family: str, changes: dict[str, OfTrace]) -> list[Kind]:
    """Return kinds that change one rank."""
    return [Kind(family, name, on_one(change)) for name, change in changes.items()]


def of_all(family: str, changes: dict[str, OfTrace]) -> list[Kind]:
    """Return kinds that change every rank alike, in runs of several."""
    return [Kind(family, f"{name}, all ranks", on_all(change)) for name, change in changes.items()]
