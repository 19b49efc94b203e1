"""What may become of a published run later: withdrawn by its owner, approved or recomputed by others."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.settling import deciding, listed_of, publication, settle
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.refusal import Refused
from ccl_bench.leaderboard.store import State, event, writing
from ccl_bench.leaderboard.store.bundle import ID

if TYPE_CHECKING:
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.publishing.settling import Publication
    from ccl_bench.leaderboard.publishing.tokens import Caller
    from ccl_bench.leaderboard.store import Store

_WAITING = (State.QUARANTINED, State.WITHDRAWN)


def withdraw(store: Store, caller: Caller, run: str, note: str = "") -> None:
    """Take a run back; it keeps its page and its history. One that is withdrawn stays so."""
    with deciding(store):
        state = state_of(store, _owned(store, caller, run).run)
        if state is State.WITHDRAWN:
            return
        if state is State.SUPERSEDED:
            raise _conflict("it was replaced by another, and is not ranked any more")
        store.record(run, event(State.WITHDRAWN, caller.submitter, note))


def approve(store: Store, settings: Settings, caller: Caller, run: str, note: str = "") -> None:
    """List a run that waits in quarantine or was withdrawn; one that is listed stays so."""
    caller_must(caller, Role.MAINTAINER)
    with deciding(store):
        mine = _published(store, run)
        state = state_of(store, run)
        if state is State.SUPERSEDED:
            raise _conflict("it was replaced by another")
        if state not in _WAITING:
            return
        others = [each for each in listed_of(store, mine.recording) if each.submitter != mine.submitter]
        if others:
            raise _conflict(f"the same traces are listed as {others[0].run[:12]} of {others[0].submitter}")
        with store.engine.connect() as connection:
            job, said = queue.states_of(connection, [run]).get(run, (None, ""))
        is_verified = job is queue.JobState.VERIFIED
        listed = State.VERIFIED if is_verified else State.SELF_REPORTED
        store.record(run, event(listed, caller.submitter, note or (said if is_verified else "")))
        settle(store, settings, run)


def recompute(store: Store, settings: Settings, caller: Caller, run: str) -> None:
    """Have a run recomputed once more."""
    caller_must(caller, Role.MAINTAINER)
    with deciding(store):
        _published(store, run)
        settle(store, settings, run)
        with writing(store.engine) as connection:
            if not queue.states_of(connection, [run]):
                raise _conflict("there are no traces to recompute it from")
            queue.enqueue_again(connection, run)


def caller_must(caller: Caller, role: Role) -> None:
    """Raise Refused where somebody may not do what a role may."""
    if not caller.may(role):
        raise Refused(
            f"this takes the role {role}, and yours is {caller.role}",
            fix=f"ask somebody who is {role}",
            status=HTTPStatus.FORBIDDEN,
        )


def state_of(store: Store, run: str) -> State:
    """Return what a run counts as."""
    return store.bundle(run).history[-1].state


def missing(run: str) -> Refused:
    """Return the refusal for a run that is not there, or not for this caller's eyes."""
    return Refused(f"there is no run {run[:64]!r}", fix="check the identifier", status=HTTPStatus.NOT_FOUND)


def _published(store: Store, run: str) -> Publication:
    with store.engine.connect() as connection:
        found = publication(connection, run) if ID.fullmatch(run) else None
    if found is None:
        raise missing(run)
    return found


def _owned(store: Store, caller: Caller, run: str) -> Publication:
    """Return a publication that is the caller's own, or anyone's for a maintainer."""
    found = _published(store, run)
    if found.submitter == caller.submitter or caller.may(Role.MAINTAINER):
        return found
    if state_of(store, run) is State.QUARANTINED:
        raise missing(run)
    raise Refused("it is somebody else's", fix="ask a maintainer to withdraw it", status=HTTPStatus.FORBIDDEN)


def _conflict(what: str) -> Refused:
    return Refused(what, fix="look at its page", status=HTTPStatus.CONFLICT)
