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
    from collections.abc import Mapping
    from typing import Any

    from sqlalchemy import Connection, Row

    from ccl_bench.engine import Progress
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


def audit_store(store: Store, *, head: str | None = None, progress: Progress | None = None) -> Audit:
    """Audit a store without changing it. `head` is that of an earlier audit, which the log must contain.

    `progress` is called with the number of checked runs and their total.
    """
    expected_head = None
    if head is not None:
        parts = _HEAD.fullmatch(head)
        if parts is None:
            fix = "give NUMBER:HASH, as an audit prints it"
            raise UsageError(f"{head[:100]!r} is not a head of a log", fix=fix)
        expected_head = int(parts[1]), parts[2]
    audit = Audit()
    with store.engine.connect() as connection:
        # All queries see one state of the board; transactions of SQLite always do.
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        changes = _read_log(connection, audit, expected_head)
        of_bundles = select(RUNS.c.id, RUNS.c.state, RUNS.c.signed_by).where(RUNS.c.source.is_(None))
        on_board = connection.execute(of_bundles)
        rows = {row.id: row for row in on_board}
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


def _read_log(
    connection: Connection, audit: Audit, expected_head: tuple[int, str] | None
) -> dict[str, list[LogEntry]]:
    """Add a problem for each break of the chain, and return the entries of each run that was not removed."""
    changes: dict[str, list[LogEntry]] = {}
    previous = log.START
    for entry in log.entries(connection):
        problems = []
        if entry.number != audit.entries + 1:
            problems.append(f"the one before it is entry {audit.entries}: entries between them were removed")
        elif entry.previous != previous:
            problems.append("it does not follow from the entry before it")
        if entry.hash != entry.expected_hash:
            problems.append("it was changed: its hash differs")
        if expected_head and expected_head[0] == entry.number and expected_head[1] != entry.hash:
            problems.append("it is not the entry that --head names: the log was rewritten")
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


def _run_problem(
    store: Store, run: str, row: Row[Any, Any, Any] | None, changes: list[LogEntry], keys: Mapping[str, str]
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
    # The history may be ahead of the log: the next start writes what is missing.
    is_logged = len(history) >= len(changes) and all(
        getattr(entry, name) == value
        for entry, event in zip(changes, history, strict=False)
        for name, value in log.event_fields(event).items()
    )
    if not is_logged:
        return "its history is not the one in the log"
    if row is None:
        return "the log states that it was accepted, but it is not on the board"
    if row.state != changes[-1].state:
        return f"the board states {row.state}, but the log {changes[-1].state}"
    key = next((entry.key for entry in reversed(changes) if entry.key), None)
    if row.signed_by != key:
        return f"the board states the signing key {row.signed_by or 'none'}, but the log {key or 'none'}"
    if key is None:
        return ""
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
