"""The log of the board: every change of every run, each entry with the hash of the one before it.

Entries are written in the transaction that writes the row of the run, and never changed or removed. The hash
of an entry is the SHA-256 of its other fields as JSON: names sorted, no spaces, UTF-8, as `jq -cS` prints it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import insert, select, text

from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.rows import single_line
from ccl_bench.leaderboard.store.tables import LOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from sqlalchemy import Connection

    from ccl_bench.leaderboard.bundle.format import HistoryEvent

REMOVED = "removed"
"""State of a run whose folder was removed from the data directory."""
START = "0" * 64
"""Previous hash of the first entry."""


class LogEntry(msgspec.Struct, frozen=True):
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


def event_fields(event: HistoryEvent) -> dict[str, str]:
    """Return the fields of a change of state that the log stores."""
    return {
        "state": event.state.value,
        "at": event.at,
        # The hashes of existing entries cover texts of these lengths, so they never change.
        "by": single_line(event.by, 64),
        "note": single_line(event.note, 500),
        "superseded_by": event.superseded_by or "",
        "key": event.key,
    }


_GONE = {"state": REMOVED, "at": "", "by": "", "note": "", "superseded_by": "", "key": ""}


def log_changes(connection: Connection, histories: Mapping[str, Sequence[HistoryEvent] | None]) -> None:
    """Append the missing changes of some runs to the log; None stands for a removed run.

    Writers wait for each other from here to the end of their transactions, so that each sees the entries of
    all before it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {LOG.name} IN EXCLUSIVE MODE"))
    # A run that was removed and comes back begins a new history in the log.
    logged: Counter[str] = Counter()
    statement = select(LOG.c.run, LOG.c.state).where(LOG.c.run.in_(histories)).order_by(LOG.c.number)
    for run, state in connection.execute(statement):
        logged[run] = 0 if state == REMOVED else logged[run] + 1
    last = last_entry(connection)
    number, previous = (last.number, last.hash) if last else (0, START)
    moment, rows = timestamp(), []
    for run, events in histories.items():
        if events is None:
            changes = [_GONE] if logged[run] else []
        else:
            changes = [event_fields(event) for event in events[logged[run] :]]
        for change in changes:
            number += 1
            row: dict[str, Any] = {"number": number, "run": run, **change}
            row |= {"logged_at": moment, "previous": previous}
            previous = _hash_of(row)
            rows.append({**row, "hash": previous})
    if rows:
        connection.execute(insert(LOG), rows)


def _hash_of(fields: dict[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def last_entry(connection: Connection) -> LogEntry | None:
    """Return the last entry; None if the log is empty."""
    row = connection.execute(select(LOG).order_by(LOG.c.number.desc()).limit(1)).mappings().first()
    return LogEntry(**row) if row else None


def entries(connection: Connection) -> Iterator[LogEntry]:
    """Yield the entries, the oldest first, without holding all of them in memory."""
    statement = select(LOG).order_by(LOG.c.number)
    for row in connection.execute(statement, execution_options={"yield_per": 1000}).mappings():
        yield LogEntry(**row)
