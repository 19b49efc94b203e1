"""Ingestion of an uploaded bundle: unpack, check, store and register it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench import storage
from ccl_bench.card.comparison_fields import unranked_reason
from ccl_bench.leaderboard.bundle.archive import unpack
from ccl_bench.leaderboard.bundle.build import recording_hash
from ccl_bench.leaderboard.bundle.format import bundle_id
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.publications import (
    TRACES_FOLDER,
    UPLOADS_FOLDER,
    bytes_below,
    claiming_publications,
    find_publication,
    publication_lock,
    register_publication,
    submitter_bytes,
)
from ccl_bench.leaderboard.publishing.tokens import Role, check_origin
from ccl_bench.leaderboard.store import State, locked, new_event
from ccl_bench.leaderboard.store.tables import PUBLICATIONS, RUNS
from ccl_bench.storage.files import remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.bundle.origin import OriginStatement
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.publishing.tokens import Caller
    from ccl_bench.leaderboard.store import Store

_PREFIX = "incoming-"
_ALIVE = ".alive"
"""File whose lock is held as long as the process lives."""


@contextlib.contextmanager
def upload_folder(data: Path) -> Iterator[Path]:
    """Yield an empty folder on the file system of the data directory."""
    uploads = storage.private_folder(data / UPLOADS_FOLDER)
    with contextlib.ExitStack() as stack:
        with locked(uploads):
            folder = storage.temporary_folder(uploads, _PREFIX)
            alive = stack.enter_context((folder / _ALIVE).open("wb"))
            fcntl.flock(alive, fcntl.LOCK_EX)
        stack.callback(remove_folder, folder)
        yield folder


def remove_dead_uploads(data: Path) -> int:
    """Remove the folders of uploads whose process is dead, and return how many there were."""
    uploads = storage.private_folder(data / UPLOADS_FOLDER)
    with locked(uploads):
        dead = [folder for folder in uploads.glob(f"{_PREFIX}*") if _is_dead(folder)]
        for folder in dead:
            remove_folder(folder)
    return len(dead)


def _is_dead(folder: Path) -> bool:
    try:
        handle = os.open(folder / _ALIVE, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The state of a bundle after ingest."""

    run: str
    state: State
    is_new: bool
    replaced: list[str] = field(default_factory=list)
    """Runs that it replaces."""
    remarks: list[str] = field(default_factory=list)
    """Remarks for its submitter."""


def ingest_archive(
    store: Store,
    settings: Settings,
    caller: Caller,
    archive: Path,
    folder: Path,
    claim: Callable[[int], None],
) -> IngestResult:
    """Ingest the bundle in an archive, unpacked below an empty folder as `unpack` does."""
    unpacked = unpack(archive, folder, settings.limits, claim)
    bundle = validate_bundle(unpacked.bundle, settings.limits, unpacked.sha256)
    for name in unpacked.sha256:
        # A worker would have to give it to another program, which nothing confines.
        if name.lower().removesuffix(".gz").endswith((".nsys-rep", ".qdrep")):
            fix = "export it with nsys export --type sqlite, as ccl-bench publish does"
            raise RequestRefused("is a report that only Nsight Systems can read", where=name, fix=fix)
    return ingest_bundle(store, settings, caller, bundle, unpacked.run if unpacked.sha256 else None)


def ingest_bundle(
    store: Store, settings: Settings, caller: Caller, bundle: Bundle, run_files: Path | None = None
) -> IngestResult:
    """Ingest a validated bundle; its folder and that of the run's files are on the store's file system.

    A killed process, or a machine that loses its power, leaves nothing or a whole bundle: all content is on
    the disk before its folders are moved, the files of the run are moved first, then the bundle in one step,
    and another process can complete the registration.
    """
    for folder in (bundle.folder, *([run_files] if run_files else [])):
        storage.make_private(folder)
    storage.sync_file_system(bundle.folder)
    origin = check_origin(store.engine, bundle.folder, caller.submitter)
    run = bundle_id(bundle.folder)
    recording = recording_hash(bundle.provenance, run)
    is_maintainer = caller.may(Role.MAINTAINER)
    remarks = []
    if reason := unranked_reason(bundle.fields):
        remarks.append(f"it is listed but not ranked: {reason}")
    with publication_lock(store):
        # The same traces belong to whoever published them first; a maintainer may replace them.
        others = [
            each for each in claiming_publications(store, recording) if each.submitter != caller.submitter
        ]
        if others and not is_maintainer and all(each.run != run for each in others):
            raise RequestRefused(
                f"the same traces were published by {others[0].submitter or 'another submitter'} as "
                f"{others[0].run[:12]}",
                fix="ask a maintainer if they are yours",
                status=HTTPStatus.CONFLICT,
            )
        if not is_maintainer and not (store.folder / run).is_dir():
            _check_quota(store, settings, caller, bundle.folder, run_files)
        if run_files is not None:
            place = store.data / TRACES_FOLDER / run
            storage.private_folder(place.parent)
            if not place.exists():
                run_files.rename(place)
                storage.sync(place.parent)
        waits_why = _quarantine_reason(store, settings, caller)
        first = new_event(
            State.QUARANTINED if waits_why else State.SELF_REPORTED,
            caller.submitter,
            waits_why,
            key=origin.signature.key_id if origin else "",
        )
        _, is_new = store.add(bundle.folder, first)
        replaced = register_publication(store, settings, run, replaces_anyones=is_maintainer)
        if origin:
            _attach_origin(store, caller, run, origin)
        state = store.bundle(run).history[-1].state
    if state is State.QUARANTINED:
        remarks.append("it becomes visible when a maintainer approves it")
    with store.engine.connect() as connection:
        job, _ = queue.job_states(connection, [run]).get(run, (None, ""))
    if job in {queue.JobState.WAITING, queue.JobState.RUNNING}:
        remarks.append(
            "a worker recomputes its numbers from the traces; its page shows when they are verified"
        )
    return IngestResult(run, state, is_new, replaced, remarks)


def _check_quota(
    store: Store, settings: Settings, caller: Caller, folder: Path, run_files: Path | None
) -> None:
    """Raise RequestRefused if the runs of a submitter would take too much of the disk."""
    size = bytes_below(folder) + (bytes_below(run_files) if run_files else 0)
    stored = submitter_bytes(store, caller.submitter)
    if stored + size > settings.submitter_bytes:
        raise RequestRefused(
            f"the runs of {caller.submitter} take {stored:,} bytes on this server, and this one {size:,}; "
            f"{settings.submitter_bytes:,} are allowed",
            fix="ask its operator to remove some, or put the traces into object storage: "
            "--traces s3://bucket/folder",
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )


def _attach_origin(store: Store, caller: Caller, run: str, origin: OriginStatement) -> None:
    """Add a signature to a run that its submitter published before, unsigned or with another key."""
    bundle, key = store.bundle(run), origin.signature.key_id
    with store.engine.connect() as connection:
        publication = find_publication(connection, run)
    if bundle.signed_by == key or publication is None or publication.submitter != caller.submitter:
        return
    last = bundle.history[-1]
    note = "its origin was signed"
    event = new_event(last.state, caller.submitter, note, superseded_by=last.superseded_by, key=key)
    store.sign(run, origin.signature.text, event)


def _quarantine_reason(store: Store, settings: Settings, caller: Caller) -> str:
    """Return the reason why a bundle must wait for a maintainer; empty if it need not."""
    if caller.may(Role.MAINTAINER) or settings.quarantine == "none":
        return ""
    if settings.quarantine == "all":
        return "every bundle needs approval"
    shown_states = [state.value for state in (State.SELF_REPORTED, State.VERIFIED, State.SUPERSEDED)]
    approved = (
        select(PUBLICATIONS.c.run)
        .join(RUNS, RUNS.c.id == PUBLICATIONS.c.run)
        .where(PUBLICATIONS.c.submitter == caller.submitter, RUNS.c.state.in_(shown_states))
    )
    with store.engine.connect() as connection:
        is_known = connection.execute(approved.limit(1)).first() is not None
    return "" if is_known else "the first bundle of this submitter needs approval"
