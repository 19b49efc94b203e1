"""Which blocks were in use when, replayed backwards from the state at the snapshot.

A history is a ring that may have lost its beginning, so what was in use at its first event is
not in it: it follows from the end. Each block that was in use at the snapshot, or is freed by an event,
has one life; the event that allocated it ends its way backwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BEFORE = -1
"""Order of what happened before the history."""


@dataclass(slots=True)
class Event:
    """One event of one device."""

    action: str
    address: int
    size: int
    stack: int | None = None
    category: str | None = None


@dataclass(slots=True)
class Life:
    """One block from its allocation until a stream no longer needs it."""

    address: int
    requested: int | None
    size: int | None = None
    """Bytes of the block; None until they are known."""
    born: int = BEFORE
    freed: int | None = None
    """Order of the event that asked to free it; None where it was allocated at the snapshot."""
    died: int | None = None
    """Order of the event that freed it; None where it was in use at the snapshot."""
    stack: int | None = None
    category: str | None = None
    is_pending: bool = False
    """Whether it was freed and still in use at the snapshot."""
    is_exact: bool = True
    """Whether the size is known, not the least that it can be."""

    @property
    def lacks_freeing(self) -> bool:
        """Whether it was freed, by an event that has not been met."""
        return self.freed is None and (self.died is not None or self.is_pending)


@dataclass(slots=True)
class Replay:
    """The lives of one device's blocks."""

    lives: list[Life] = field(default_factory=list)
    contradictions: int = 0
    """Events that do not fit those after them."""


def replayed(events: Sequence[Event], at_end: Sequence[Life]) -> Replay:
    """Return the lives that end in those blocks that are in use `at_end`."""
    found = Replay(list(at_end))
    in_use = {life.address: life for life in at_end}
    for order in range(len(events) - 1, -1, -1):
        event = events[order]
        if event.action == "alloc":
            _born(found, in_use, event, order)
        elif event.action == "free_completed":
            _died(found, in_use, event, order)
        elif event.action == "free_requested":
            _freed(found, in_use, event, order)
    for life in in_use.values():
        if life.lacks_freeing:
            life.freed = BEFORE
    return found


def _born(found: Replay, in_use: dict[int, Life], event: Event, order: int) -> None:
    life = in_use.pop(event.address, None)
    if life is None:
        found.contradictions += 1
        return
    if life.lacks_freeing:
        life.freed = order if life.died is None else life.died
        found.contradictions += 1
    life.born = order
    life.requested = event.size
    life.stack = event.stack if event.stack is not None else life.stack
    life.category = event.category or life.category


def _died(found: Replay, in_use: dict[int, Life], event: Event, order: int) -> None:
    _replace(found, in_use, Life(event.address, event.size, died=order), order)


def _replace(found: Replay, in_use: dict[int, Life], life: Life, order: int) -> None:
    """Let a block be in use; what was there later and was never allocated began after it."""
    later = in_use.get(life.address)
    if later is not None:
        later.born = order
        found.contradictions += 1
    in_use[life.address] = life
    found.lives.append(life)


def _freed(found: Replay, in_use: dict[int, Life], event: Event, order: int) -> None:
    life = in_use.get(event.address)
    if life is not None and life.lacks_freeing:
        life.freed = order
        return
    found.contradictions += 1
    _replace(found, in_use, Life(event.address, event.size, freed=order, died=order), order)
