"""Take a bundle in: unpack it, check everything, keep it, and say what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench.comparison import unknown_fields
from ccl_bench.leaderboard.bundle.checking import refuse_mistakes
from ccl_bench.leaderboard.bundle.making import recording_of
from ccl_bench.leaderboard.bundle.reading import unpack
from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.settling import TRACES, deciding, listed_of, settle
from ccl_bench.leaderboard.publishing.tables import PUBLICATIONS
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.refusal import Refused
from ccl_bench.leaderboard.store import State, event
from ccl_bench.leaderboard.store.bundle import bundle_id
from ccl_bench.leaderboard.store.tables import RUNS

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.publishing.tokens import Caller
    from ccl_bench.leaderboard.store import Event, Store
    from ccl_bench.leaderboard.store.bundle import Bundle

_CONVERTED = (".nsys-rep", ".qdrep")
"""Files that a program of somebody else would have to open."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a bundle that was taken in."""

    run: str
    state: State
    is_new: bool
    replaced: list[str] = field(default_factory=list)
    """Runs that it replaces."""
    remarks: list[str] = field(default_factory=list)
    """What its submitter should know."""


def accept_archive(store: Store, settings: Settings, caller: Caller, archive: Path, folder: Path) -> Accepted:
    """Take in the bundle in an archive, unpacked below an empty folder."""
    unpacked = unpack(archive, folder, settings.limits)
    bundle = refuse_mistakes(unpacked.bundle, settings.limits, unpacked.sha256)
    _refuse_programs_files(unpacked.sha256)
    return accept(store, settings, caller, bundle, unpacked.run if unpacked.sha256 else None)


def accept(
    store: Store, settings: Settings, caller: Caller, bundle: Bundle, run_files: Path | None = None
) -> Accepted:
    """Take in a checked bundle whose folder, like that of the run's files, is on the store's file system.

    The order is such that a process killed anywhere leaves either nothing or a whole bundle: files of the run
    come to their place first, then the bundle in one step, and what follows from it can be done by another.
    """
    run = bundle_id(bundle.folder)
    recording = recording_of(bundle.provenance, run)
    remarks = _remarks(bundle)
    with deciding(store):
        _refuse_other_peoples(store, caller, recording, run)
        if run_files is not None:
            _keep(run_files, store.data / TRACES / run)
        _, is_new = store.add(bundle.folder, _first_event(store, settings, caller))
        is_maintainer = caller.may(Role.MAINTAINER)
        replaced = settle(store, settings, run, replaces_anyones=is_maintainer)
        state = store.bundle(run).history[-1].state
    if state is State.QUARANTINED:
        remarks.append("it is shown after a maintainer has looked at it")
    with store.engine.connect() as connection:
        job, _ = queue.states_of(connection, [run]).get(run, (None, ""))
    if job in {queue.JobState.WAITING, queue.JobState.RUNNING}:
        remarks.append(
            "a worker recomputes its numbers from the traces; its page tells when they are verified"
        )
    return Accepted(run, state, is_new, replaced, remarks)


def _refuse_programs_files(names: dict[str, str]) -> None:
    """Refuse reports that the worker would have to give to another program."""
    reports = [name for name in names if name.lower().removesuffix(".gz").endswith(_CONVERTED)]
    if reports:
        fix = "export it with nsys export --type sqlite, which ccl-bench publish does by itself"
        raise Refused("is a report that only Nsight Systems can open", where=reports[0], fix=fix)


def _refuse_other_peoples(store: Store, caller: Caller, recording: str, run: str) -> None:
    """Refuse a recording that somebody else has published; maintainers may replace it."""
    others = [each for each in listed_of(store, recording) if each.submitter != caller.submitter]
    if not others or caller.may(Role.MAINTAINER) or any(each.run == run for each in others):
        return
    raise Refused(
        f"the same traces were published by {others[0].submitter or 'somebody else'} as {others[0].run[:12]}",
        fix="ask a maintainer where they are yours",
        status=HTTPStatus.CONFLICT,
    )


def _first_event(store: Store, settings: Settings, caller: Caller) -> Event:
    reason = _quarantine(store, settings, caller)
    if reason:
        return event(State.QUARANTINED, caller.submitter, reason)
    return event(State.SELF_REPORTED, caller.submitter)


def _quarantine(store: Store, settings: Settings, caller: Caller) -> str:
    """Return why a bundle has to wait for a maintainer; empty where it does not."""
    if caller.may(Role.MAINTAINER) or settings.quarantine == "none":
        return ""
    if settings.quarantine == "all":
        return "every bundle is looked at"
    shown = [state.value for state in (State.SELF_REPORTED, State.VERIFIED, State.SUPERSEDED)]
    approved = (
        select(PUBLICATIONS.c.run)
        .join(RUNS, RUNS.c.id == PUBLICATIONS.c.run)
        .where(PUBLICATIONS.c.submitter == caller.submitter, RUNS.c.state.in_(shown))
    )
    with store.engine.connect() as connection:
        is_known = connection.execute(approved.limit(1)).first() is not None
    return "" if is_known else "the first bundle of this submitter is looked at"


def _keep(run_files: Path, place: Path) -> None:
    """Put the files of a run where the worker finds them; those that are there already stay."""
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        run_files.rename(place)


def _remarks(bundle: Bundle) -> list[str]:
    missing = unknown_fields(bundle.fields)
    if not missing:
        return []
    listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    return [f"it is listed but not ranked: the card does not say {listed}"]
