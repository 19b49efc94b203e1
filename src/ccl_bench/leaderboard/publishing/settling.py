"""What follows from a bundle that is there: whose it is, what it replaces, whether it is recomputed.

Everything here can be done again without harm, and is done for whatever is found without it: what a killed
process left undone is finished by the next one that starts.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from ccl_bench.leaderboard.bundle.making import recording_of
from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.clock import now
from ccl_bench.leaderboard.publishing.settings import STORAGE
from ccl_bench.leaderboard.publishing.tables import JOBS, PUBLICATIONS
from ccl_bench.leaderboard.store import State, event, locked, writing
from ccl_bench.leaderboard.store.history import LISTED
from ccl_bench.leaderboard.store.tables import RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store import Store
    from ccl_bench.leaderboard.store.bundle import Bundle

UPLOADS, TRACES = "uploads", "traces"
"""Folders below the data directory: what is being received, and the files of runs that came with bundles."""


@contextlib.contextmanager
def deciding(store: Store) -> Iterator[None]:
    """Keep every other process from deciding what becomes of bundles; not to be nested."""
    folder = store.data / UPLOADS
    folder.mkdir(exist_ok=True)
    with locked(folder):
        yield


@dataclass(frozen=True, slots=True, order=True)
class Publication:
    """Whose a run is; the last received is the greatest."""

    received_at: str
    run: str
    submitter: str
    recording: str


def publication(connection: Connection, run: str) -> Publication | None:
    """Return the publication of a run."""
    return next(iter(_publications(connection, PUBLICATIONS.c.run == run)), None)


def listed_of(store: Store, recording: str) -> list[Publication]:
    """Return the publications of a recording that are listed, by what their files say."""
    with store.engine.connect() as connection:
        found = _publications(connection, PUBLICATIONS.c.recording == recording)
    return [
        each for each in found if (store.folder / each.run).is_dir() and _is_listed(store.bundle(each.run))
    ]


def _is_listed(bundle: Bundle) -> bool:
    return bundle.history[-1].state in LISTED


def _publications(connection: Connection, condition: ColumnElement[bool]) -> list[Publication]:
    rows = connection.execute(select(PUBLICATIONS).where(condition)).mappings()
    return sorted(Publication(**row) for row in rows)


def settle(store: Store, settings: Settings, run: str, *, replaces_anyones: bool = False) -> list[str]:
    """Do what follows from a bundle that is in the store, and return the runs that are replaced.

    Of the listed runs of one recording and submitter the last received stays, and replaces the others. Whose
    the bundle is stands in the database last of all: it says that everything else is done.
    """
    bundle = store.bundle(run)
    with store.engine.connect() as connection:
        known = publication(connection, run)
    mine = known or _received(bundle)
    replaced = _supersede(store, mine, replaces_anyones=replaces_anyones) if _is_listed(bundle) else []
    with writing(store.engine) as connection:
        if known is None:
            connection.execute(insert(PUBLICATIONS), [asdict(mine)])
        if _can_be_recomputed(store, settings, bundle):
            queue.enqueue(connection, run)
    return replaced


def _supersede(store: Store, mine: Publication, *, replaces_anyones: bool) -> list[str]:
    """Let the last of the listed runs of a recording replace the others, and return those."""
    everybodys = {*listed_of(store, mine.recording), mine}
    *others, last = sorted(
        each for each in everybodys if replaces_anyones or each.submitter == mine.submitter
    )
    for each in others:
        store.record(each.run, event(State.SUPERSEDED, mine.submitter, superseded_by=last.run))
    return [each.run for each in others]


def _received(bundle: Bundle) -> Publication:
    """Return whose a bundle is. Of one that was received before, only the second is known."""
    first, moment = bundle.history[0], now()
    is_new = not first.at or moment.startswith(first.at.removesuffix("Z"))
    return Publication(
        received_at=moment if is_new else first.at.replace("Z", ".999999Z"),
        run=bundle.id,
        submitter=first.by[:64],
        recording=recording_of(bundle.provenance, bundle.id),
    )


def _can_be_recomputed(store: Store, settings: Settings, bundle: Bundle) -> bool:
    """Whether the server has the files of the run, or may fetch them."""
    made = bundle.provenance
    return (store.data / TRACES / bundle.id).is_dir() or may_be_read(made.trace_url, settings)


def may_be_read(address: str | None, settings: Settings) -> bool:
    """Whether an address lies in storage that the operator named; nothing else is ever fetched."""
    if address is None or not address.startswith(STORAGE):
        return False
    plain = "/../" not in f"{address}/" and not set("%?#\\") & set(address)
    return plain and f"{address.rstrip('/')}/".startswith(settings.trace_storage)


def settle_all(store: Store, settings: Settings) -> None:
    """Finish what was left undone: bundles that nobody settled, rows and traces of bundles that are gone."""
    with deciding(store):
        store.catch_up_if_changed()
        with store.engine.connect() as connection:
            known = set(connection.execute(select(PUBLICATIONS.c.run)).scalars())
            indexed = set(connection.execute(select(RUNS.c.id)).scalars())
        gone = sorted(run for run in known - indexed if not (store.folder / run).is_dir())
        if gone:
            with writing(store.engine) as connection:
                for table in (JOBS, PUBLICATIONS):
                    connection.execute(delete(table).where(table.c.run.in_(gone)))
        for run in sorted(indexed - known):
            settle(store, settings, run)
        _forget_traces(store.data / TRACES, store.folder)


def _forget_traces(traces: Path, runs: Path) -> None:
    """Remove the files of runs whose bundle never arrived."""
    for folder in traces.iterdir() if traces.is_dir() else ():
        if not (runs / folder.name).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
