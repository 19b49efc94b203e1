"""The audit of a board: log complete, every row in the log, every bundle as accepted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.leaderboard.bundle.format import open_bundle, read_history
from ccl_bench.leaderboard.bundle.origin import parse_public_key, read_origin
from ccl_bench.leaderboard.store import log
from ccl_bench.leaderboard.store.tables import KEYS, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.store import Store
    from ccl_bench.leaderboard.store.log import LogEntry

_HEAD = re.compile(r"([1-9]\d{0,8}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between the board and what it accepted."""

    where: str
    """Entry of the log, such as `entry 12`, or identifier of a run."""
    message: str


@dataclass(slots=True)
class Audit:
    """The result of an audit."""

    entries: int = 0
    head: str | None = None
    """The last entry; keep it for the next audit."""
    runs: int = 0
    """Rows on the board."""
    signed: int = 0
    """Rows whose signature was verified."""
    unlisted: int = 0
    """Folders of bundles that neither board nor log has: new ones, or the database was lost."""
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the board."""

    id: str
    state: str
    signed_by: str | None


def audit_store(store: Store, *, head: str | None = None, progress: Progress | None = None) -> Audit:
    """Audit a store without changing it. `head` is that of an earlier audit, which the log must contain.

    `progress` is called with the number of checked runs and their total.
    """
    expected_head = _parsed_head(head)
    with _snapshot(store) as connection:
        audit = Audit()
        changes = _read_log(connection, audit, expected_head)
        rows = {row.id: _Row(*row) for row in connection.execute(_ROWS)}
        keys = {row.id: row.public_key for row in connection.execute(select(KEYS.c.id, KEYS.c.public_key))}
    audit.runs = len(rows)
    audit.unlisted = len(store.folders() - rows.keys() - changes.keys())
    listed = sorted(rows.keys() | changes.keys())
    for done, run in enumerate(listed, start=1):
        problem = _run_problem(store, run, rows.get(run), changes.get(run, []), keys)
        if problem:
            audit.problems.append(Problem(run, problem))
        elif run in rows and rows[run].signed_by:
            audit.signed += 1
        if progress:
            progress(done, len(listed))
    return audit


_ROWS = select(RUNS.c.id, RUNS.c.state, RUNS.c.signed_by)


def _snapshot(store: Store) -> Connection:
    """Return a connection with a consistent snapshot of the database."""
    connection = store.engine.connect()
    if connection.dialect.name == "postgresql":
        return connection.execution_options(isolation_level="REPEATABLE READ")
    return connection


def _parsed_head(head: str | None) -> tuple[int, str] | None:
    if head is None:
        return None
    parts = _HEAD.fullmatch(head)
    if parts is None:
        raise UsageError(
            f"{head[:100]!r} is not a head of a log", fix="give NUMBER:HASH, as an audit prints it"
        )
    return int(parts[1]), parts[2]


def _read_log(
    connection: Connection, audit: Audit, expected_head: tuple[int, str] | None
) -> dict[str, list[LogEntry]]:
    """Add a problem for each break of the chain, and return the entries of each run that was not removed."""
    changes: dict[str, list[LogEntry]] = {}
    previous = log.START
    for entry in log.entries(connection):
        problems = _entry_problems(entry, audit.entries, previous, expected_head)
        audit.problems += [Problem(f"entry {entry.number}", problem) for problem in problems]
        audit.entries, audit.head, previous = entry.number, entry.head, entry.hash
        if entry.state == log.REMOVED:
            changes.pop(entry.run, None)
        else:
            changes.setdefault(entry.run, []).append(entry)
    if expected_head and audit.entries < expected_head[0]:
        missing = "the log ends before the entry that --head names: entries were removed"
        audit.problems.append(Problem(f"entry {expected_head[0]}", missing))
    return changes


def _entry_problems(
    entry: LogEntry, before: int, previous: str, expected_head: tuple[int, str] | None
) -> Iterator[str]:
    """Yield the problems of an entry, which follows entry number `before` with the hash `previous`."""
    if entry.number != before + 1:
        yield f"the one before it is entry {before}: entries between them were removed"
    elif entry.previous != previous:
        yield "it does not follow from the entry before it"
    if entry.hash != entry.expected_hash:
        yield "it was changed: its hash differs"
    if expected_head and expected_head[0] == entry.number and expected_head[1] != entry.hash:
        yield "it is not the entry that --head names: the log was rewritten"


def _run_problem(
    store: Store, run: str, row: _Row | None, changes: list[LogEntry], keys: Mapping[str, str]
) -> str:
    """Return the problem of a run; empty if there is none."""
    if not changes:
        return "it is on the board, but the log has no entry that it was accepted"
    try:
        bundle = open_bundle(store.folder / run)
        history = read_history(bundle.folder)
    except FileNotFoundError:
        return "the log states that it was accepted, but its files are missing"
    except CclBenchError as error:
        return error.message
    logged = [{name: getattr(entry, name) for name in _CHANGE} for entry in changes]
    if [log.event_fields(event) for event in history[: len(logged)]] != logged:
        return "its history is not the one in the log"
    if row is None:
        return "the log states that it was accepted, but it is not on the board"
    if row.state != changes[-1].state:
        return f"the board states {row.state}, but the log {changes[-1].state}"
    key = next((entry.key for entry in reversed(changes) if entry.key), None)
    if row.signed_by != key:
        return f"the board states the signing key {row.signed_by or 'none'}, but the log {key or 'none'}"
    return _origin_problem(bundle, key, keys) if key else ""


_CHANGE = ("state", "at", "by", "note", "superseded_by", "key")
"""Fields that an entry of the log copies from the history of its run."""


def _origin_problem(bundle: Bundle, key: str, keys: Mapping[str, str]) -> str:
    """Return the reason why the signature of a bundle is invalid; empty if it is valid."""
    if key not in keys:
        return f"it is signed with the key {key}, which is not registered"
    try:
        origin = read_origin(bundle.folder)
        if origin is None:
            return "its signature is missing"
        origin.verify(bundle.folder, parse_public_key(keys[key]))
    except InputError as error:
        return error.message
    return ""
