"""Publications: owner of a run, the runs that it supersedes, and whether it is recomputed.

Every step is idempotent and is repeated for every bundle that lacks it: the next process finishes the work
of a killed one.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete, exists, func, insert, select

from ccl_bench.base.text import plain
from ccl_bench.leaderboard.bundle.build import recording_hash
from ccl_bench.leaderboard.bundle.format import LISTED
from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.settings import STORAGE
from ccl_bench.leaderboard.store import State, locked, new_event, writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import JOBS, PUBLICATIONS, RUNS
from ccl_bench.storage import private_folder, stored_bytes
from ccl_bench.storage.files import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store import Store

UPLOADS_FOLDER, TRACES_FOLDER = "uploads", "traces"
"""Folders below the data directory: uploads in progress, and files of runs that were sent with bundles."""


@contextlib.contextmanager
def publication_lock(store: Store) -> Iterator[None]:
    """Lock out every other process that registers bundles; do not nest it."""
    with locked(private_folder(store.data / UPLOADS_FOLDER)):
        yield


@dataclass(frozen=True, slots=True, order=True)
class Publication:
    """The owner of a run; a later publication compares greater."""

    received_at: str
    run: str
    submitter: str
    recording: str
    bytes: int
    """That its files take on the disk."""


def find_publication(connection: Connection, run: str) -> Publication | None:
    """Return the publication of a run."""
    return next(iter(_publications(connection, PUBLICATIONS.c.run == run)), None)


def submitter_bytes(store: Store, submitter: str) -> int:
    """Return the bytes that the runs of a submitter take on the disk, in any state."""
    statement = select(func.coalesce(func.sum(PUBLICATIONS.c.bytes), 0))
    with store.engine.connect() as connection:
        return int(connection.execute(statement.where(PUBLICATIONS.c.submitter == submitter)).scalar_one())


def bytes_below(folder: Path) -> int:
    """Return the bytes that the files below a folder take on the disk; 0 without it."""
    paths = (Path(place, name) for place, _, names in walk(folder) for name in names)
    return sum(stored_bytes(path.lstat().st_size) for path in paths)


def listed_publications(store: Store, recording: str) -> list[Publication]:
    """Return the listed publications of a recording, by the histories in their files."""
    return [each for each, bundle in _publications_on_disk(store, recording) if _is_listed(bundle)]


def claiming_publications(store: Store, recording: str) -> list[Publication]:
    """Return the publications that keep other submitters from publishing a recording.

    They are listed, or were withdrawn by their submitter: their files stay public, and nobody else's.
    """
    return [
        each
        for each, bundle in _publications_on_disk(store, recording)
        if _is_listed(bundle) or _withdrawn_by(bundle) == each.submitter
    ]


def _publications_on_disk(store: Store, recording: str) -> Iterator[tuple[Publication, Bundle]]:
    with store.engine.connect() as connection:
        publications = _publications(connection, PUBLICATIONS.c.recording == recording)
    for each in publications:
        if (store.folder / each.run).is_dir():
            yield each, store.bundle(each.run)


def _is_listed(bundle: Bundle) -> bool:
    return bundle.history[-1].state in LISTED


def _withdrawn_by(bundle: Bundle) -> str | None:
    """Return who withdrew a run that is withdrawn; a later signature of its submitter changes nothing."""
    last_events = [*takewhile(lambda event: event.state is State.WITHDRAWN, reversed(bundle.history))]
    return last_events[-1].by if last_events else None


def _publications(connection: Connection, condition: ColumnElement[bool]) -> list[Publication]:
    rows = connection.execute(select(PUBLICATIONS).where(condition)).mappings()
    return sorted(Publication(**row) for row in rows)


def register_publication(
    store: Store, settings: Settings, run: str, *, replaces_anyones: bool = False
) -> list[str]:
    """Register a bundle that is in the store, and return the runs that it replaces.

    The last received run of a recording and submitter replaces the other listed ones. The owner is written
    to the database last: its presence shows that all other steps are done.
    """
    bundle = store.bundle(run)
    with store.engine.connect() as connection:
        stored_publication = find_publication(connection, run)
    publication = stored_publication
    if publication is None:
        # The time of a bundle that an earlier process left behind is known only to the second.
        first, moment = bundle.history[0], timestamp()
        is_new = not first.at or moment.startswith(first.at.removesuffix("Z"))
        publication = Publication(
            received_at=moment if is_new else first.at.replace("Z", ".999999Z"),
            run=bundle.id,
            submitter=first.by[:64],
            recording=recording_hash(bundle.provenance, bundle.id),
            bytes=bytes_below(bundle.folder) + bytes_below(store.data / TRACES_FOLDER / run),
        )
    replaced = _supersede(store, publication, replaces_anyones=replaces_anyones) if _is_listed(bundle) else []
    has_files = (store.data / TRACES_FOLDER / run).is_dir()
    with writing(store.engine) as connection:
        if stored_publication is None:
            connection.execute(insert(PUBLICATIONS), [asdict(publication)])
        if has_files or is_readable_storage(bundle.provenance.trace_url, settings):
            queue.enqueue(connection, run)
    return replaced


def _supersede(store: Store, publication: Publication, *, replaces_anyones: bool) -> list[str]:
    """Let the last listed run of a recording replace the others, and return those."""
    publications = {*listed_publications(store, publication.recording), publication}
    *others, last = sorted(
        each for each in publications if replaces_anyones or each.submitter == publication.submitter
    )
    for each in others:
        store.record(each.run, new_event(State.SUPERSEDED, publication.submitter, superseded_by=last.run))
    return [each.run for each in others]


def is_readable_storage(address: str | None, settings: Settings) -> bool:
    """Whether an address is in storage that the operator allows; nothing else is ever downloaded."""
    if address is None or not address.startswith(STORAGE):
        return False
    folder = address.removesuffix("/")
    is_plain = (
        address == plain(address)
        and not set("%?#\\*[]{} ") & set(address)
        and "::" not in address  # joins addresses of several kinds
        and not {"", ".", ".."} & set(folder.partition("://")[2].split("/"))
    )
    return is_plain and f"{folder}/".startswith(settings.trace_storage)


_LISTED_TWICE = (
    select(func.min(PUBLICATIONS.c.run))
    .join(RUNS, RUNS.c.id == PUBLICATIONS.c.run)
    .where(RUNS.c.is_listed == 1)
    .group_by(PUBLICATIONS.c.recording, PUBLICATIONS.c.submitter)
    .having(func.count() > 1)
)
"""A run of each recording of which a killed process listed a second run and did not replace the first."""


_IS_BOTH = PUBLICATIONS.c.run == RUNS.c.id
_UNINDEXED = select(PUBLICATIONS.c.run).where(~exists().where(_IS_BOTH))
_UNPUBLISHED = select(RUNS.c.id).where(RUNS.c.source.is_(None), ~exists().where(_IS_BOTH))


def reconcile(store: Store, settings: Settings) -> None:
    """Clean up: finish incomplete bundles and changes of state, remove rows and traces of missing ones."""
    with publication_lock(store):
        store.catch_up()
        with store.engine.connect() as connection:
            unindexed, unpublished, listed_twice = (
                connection.execute(each).scalars().all() for each in (_UNINDEXED, _UNPUBLISHED, _LISTED_TWICE)
            )
        missing_runs = [run for run in unindexed if not (store.folder / run).is_dir()]
        if missing_runs:
            with writing(store.engine) as connection:
                for table in (JOBS, PUBLICATIONS):
                    connection.execute(delete(table).where(table.c.run.in_(missing_runs)))
        for run in sorted({*unpublished, *listed_twice}):
            register_publication(store, settings, run)
        # A process that died before the bundle arrived leaves the files of its run.
        traces = store.data / TRACES_FOLDER
        for folder in traces.iterdir() if traces.is_dir() else ():
            if not (store.folder / folder.name).is_dir():
                shutil.rmtree(folder, ignore_errors=True)
