"""The log of the board: every change of every run, each entry with the hash of the one before it.

Entries are written in the transaction that writes the row of the run, and never changed or removed. The hash
of an entry is the SHA-256 of its other fields as JSON: names sorted, no spaces, UTF-8, as `jq -cS` prints it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import insert, select, text

from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.rows import single_line
from ccl_bench.leaderboard.store.tables import LOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from ccl_bench.leaderboard.bundle.format import Event

REMOVED = "removed"
"""State of a run whose folder was removed from the data directory."""
START = "0" * 64
"""Previous hash of the first entry."""
_MAX_NOTE = 500
_AT_ONCE = 1000
"""Number of entries that are read from the database together."""


class Entry(msgspec.Struct, frozen=True):
    """One change of one run."""

    number: int
    """1 for the first."""
    run: str
    state: str
    """State of the run from here on, or `removed`."""
    at: str
    """Time of the change, from the history of the run."""
    by: str
    note: str
    superseded_by: str
    key: str
    """Id of the key that signed the origin, where this change brought the signature."""
    logged_at: str
    previous: str
    """Hash of the entry before this one."""
    hash: str

    @property
    def expected_hash(self) -> str:
        """The correct hash of the entry."""
        return _hash_of({name: getattr(self, name) for name in self.__struct_fields__ if name != "hash"})

    @property
    def head(self) -> str:
        """Number and hash of the entry, to check a later log against."""
        return f"{self.number}:{self.hash}"


def event_fields(event: Event) -> dict[str, str]:
    """Return the fields of a change of state that the log stores."""
    return {
        "state": event.state.value,
        "at": event.at,
        "by": single_line(event.by, 64),
        "note": single_line(event.note, _MAX_NOTE),
        "superseded_by": event.superseded_by or "",
        "key": event.key,
    }


_GONE = {"state": REMOVED, "at": "", "by": "", "note": "", "superseded_by": "", "key": ""}


def log_changes(connection: Connection, histories: Mapping[str, Sequence[Event] | None]) -> None:
    """Append the missing changes of some runs to the log; None stands for a removed run.

    Writers wait for each other from here to the end of their transactions, so that each sees the entries of
    all before it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {LOG.name} IN EXCLUSIVE MODE"))
    counts = _logged_counts(connection, histories)
    changes = [
        (run, change)
        for run, events in histories.items()
        for change in _missing_changes(events, counts.get(run, 0))
    ]
    if changes:
        connection.execute(insert(LOG), list(_chained(last_entry(connection), changes)))


def _logged_counts(connection: Connection, runs: Mapping[str, object]) -> dict[str, int]:
    """Return the number of changes of each run in the log since it was put onto the board."""
    counts: dict[str, int] = {}
    statement = select(LOG.c.run, LOG.c.state).where(LOG.c.run.in_(runs)).order_by(LOG.c.number)
    for run, state in connection.execute(statement):
        counts[run] = 0 if state == REMOVED else counts.get(run, 0) + 1
    return counts


def _missing_changes(events: Sequence[Event] | None, logged: int) -> list[dict[str, str]]:
    if events is None:
        return [_GONE] if logged else []
    return [event_fields(event) for event in events[logged:]]


def _chained(
    last: Entry | None, changes: Sequence[tuple[str, dict[str, str]]]
) -> Iterator[dict[str, object]]:
    previous, moment = last.hash if last else START, timestamp()
    for number, (run, change) in enumerate(changes, start=last.number + 1 if last else 1):
        row = {"number": number, "run": run, **change, "logged_at": moment, "previous": previous}
        previous = _hash_of(row)
        yield {**row, "hash": previous}


def _hash_of(fields: dict[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def last_entry(connection: Connection) -> Entry | None:
    """Return the last entry; None if the log is empty."""
    row = connection.execute(select(LOG).order_by(LOG.c.number.desc()).limit(1)).mappings().first()
    return Entry(**row) if row else None


def entries(connection: Connection) -> Iterator[Entry]:
    """Yield the entries, the oldest first."""
    statement = select(LOG).order_by(LOG.c.number)
    rows = connection.execute(statement, execution_options={"yield_per": _AT_ONCE})
    for row in rows.mappings():
        yield Entry(**row)
