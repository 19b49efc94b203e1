"""What became of a published run: a list of events in `history.json`, of which the last one counts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.storage import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

HISTORY = "history.json"

_IDENTIFIER = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class State(StrEnum):
    """What a published run counts as."""

    QUARANTINED = "quarantined"
    """Received and not checked; nobody sees it."""
    SELF_REPORTED = "self_reported"
    """Checked for form; the numbers are the submitter's."""
    VERIFIED = "verified"
    """The numbers were recomputed from the traces and agree."""
    WITHDRAWN = "withdrawn"
    """Taken back; kept, and not ranked."""
    SUPERSEDED = "superseded"
    """Replaced by another; kept, and not ranked."""


LISTED = (State.SELF_REPORTED, State.VERIFIED)
"""States in which a run is listed and ranked."""
SHOWN = (*LISTED, State.WITHDRAWN, State.SUPERSEDED)
"""States in which a run has a page."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of state."""

    state: State
    at: str
    """ISO 8601 in UTC, to the second, such as `2026-01-31T12:00:00Z`."""
    by: str = ""
    """Who did it."""
    note: str = ""
    """Why."""
    superseded_by: str | None = None
    """Run that replaces this one."""


# Made here and not where it is used: msgspec 0.22 crashes where two threads are the first to need a type.
_DECODER = msgspec.json.Decoder(list[Event])


def event(
    state: State,
    by: str = "",
    note: str = "",
    *,
    superseded_by: str | None = None,
    at: datetime | None = None,
) -> Event:
    """Return an event that happens at this moment, or `at` another."""
    moment = (at or datetime.now(UTC)).astimezone(UTC)
    return Event(state, f"{moment:%Y-%m-%dT%H:%M:%SZ}", by, note, superseded_by)


def read_history(folder: Path) -> list[Event]:
    """Return the events of a run, oldest first; a bundle that nobody touched is self-reported."""
    path = folder / HISTORY
    try:
        events = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return [Event(State.SELF_REPORTED, "")]
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"is no history: {error}", where=str(path), fix="restore it from a backup"
        ) from error
    if not events or not all(map(_is_sound, events)):
        wrong = "is no history: it has no events, or a time or an identifier is none"
        raise InputError(wrong, where=str(path), fix="restore it from a backup")
    return events


def _is_sound(found: Event) -> bool:
    has_time = not found.at or _TIME.fullmatch(found.at)
    return bool(has_time and (found.superseded_by is None or _IDENTIFIER.fullmatch(found.superseded_by)))


def write_history(folder: Path, events: list[Event]) -> None:
    """Replace the history of a run in one step."""
    with write_atomically(folder / HISTORY) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(events), indent=2) + b"\n")
        temporary.chmod(0o644)


def stamp(folder: Path) -> str:
    """Return what changes whenever the history does."""
    try:
        found = (folder / HISTORY).stat()
    except FileNotFoundError:
        return ""
    return f"{found.st_size}-{found.st_mtime_ns}"
