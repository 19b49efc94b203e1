"""Moderation: withdraw, approve and recompute published runs, over HTTP or in the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench.leaderboard.bundle.format import ID
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.publishing import queue, tokens
from ccl_bench.leaderboard.publishing.models import Receipt, Verification
from ccl_bench.leaderboard.publishing.publications import (
    find_publication,
    listed_publications,
    publication_lock,
    reconcile,
    register_publication,
)
from ccl_bench.leaderboard.publishing.settings import load_settings
from ccl_bench.leaderboard.publishing.tokens import Caller, Role, require_role
from ccl_bench.leaderboard.store import State, new_event, writing
from ccl_bench.leaderboard.store.tables import PUBLICATIONS, RUNS

if TYPE_CHECKING:
    from ccl_bench.leaderboard.publishing.publications import Publication
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store import Store

_WAITING = (State.QUARANTINED, State.WITHDRAWN)


def withdraw(store: Store, caller: Caller, run: str, note: str = "") -> None:
    """Withdraw a run; it keeps its page and its history. A withdrawn run stays withdrawn."""
    with publication_lock(store):
        publication = _existing_publication(store, run)
        state = current_state(store, run)
        if publication.submitter != caller.submitter and not caller.may(Role.MAINTAINER):
            if state is State.QUARANTINED:
                raise run_not_found(run)
            raise RequestRefused(
                "it belongs to another submitter",
                fix="ask a maintainer to withdraw it",
                status=HTTPStatus.FORBIDDEN,
            )
        if state is State.WITHDRAWN:
            return
        if state is State.SUPERSEDED:
            raise _conflict("it was replaced by another run and is no longer ranked")
        store.record(run, new_event(State.WITHDRAWN, caller.submitter, note))


def approve(store: Store, settings: Settings, caller: Caller, run: str, note: str = "") -> None:
    """List a run that waits in quarantine or was withdrawn; a listed one stays listed."""
    require_role(caller, Role.MAINTAINER)
    with publication_lock(store):
        publication = _existing_publication(store, run)
        state = current_state(store, run)
        if state is State.SUPERSEDED:
            raise _conflict("it was replaced by another")
        if state not in _WAITING:
            register_publication(store, settings, run)  # whoever listed it may have been killed before that
            return
        others = [
            each
            for each in listed_publications(store, publication.recording)
            if each.submitter != publication.submitter
        ]
        if others:
            raise _conflict(f"the same traces are listed as {others[0].run[:12]} of {others[0].submitter}")
        with store.engine.connect() as connection:
            job, job_message = queue.job_states(connection, [run]).get(run, (None, ""))
        is_verified = job is queue.JobState.VERIFIED
        listed = State.VERIFIED if is_verified else State.SELF_REPORTED
        store.record(run, new_event(listed, caller.submitter, note or (job_message if is_verified else "")))
        register_publication(store, settings, run)


def recompute(store: Store, settings: Settings, caller: Caller, run: str) -> None:
    """Queue a run for recomputing again."""
    require_role(caller, Role.MAINTAINER)
    with publication_lock(store):
        _existing_publication(store, run)
        register_publication(store, settings, run)
        with writing(store.engine) as connection:
            if not queue.job_states(connection, [run]):
                raise _conflict("there are no traces to recompute it from")
            queue.requeue(connection, run)


def current_state(store: Store, run: str) -> State:
    """Return the state of a run."""
    return store.bundle(run).history[-1].state


def run_not_found(run: str) -> RequestRefused:
    """Return the refusal for a run that does not exist, or that this caller may not see."""
    return RequestRefused(
        f"there is no run {run[:64]!r}", fix="check the identifier", status=HTTPStatus.NOT_FOUND
    )


def _existing_publication(store: Store, run: str) -> Publication:
    with store.engine.connect() as connection:
        publication = find_publication(connection, run) if ID.fullmatch(run) else None
    if publication is None:
        raise run_not_found(run)
    return publication


def _conflict(what: str) -> RequestRefused:
    return RequestRefused(what, fix="look at its page", status=HTTPStatus.CONFLICT)


def receipt(store: Store, run: str) -> Receipt:
    """Return the state of a bundle; raise RequestRefused if there is none."""
    publication, bundle = _existing_publication(store, run), store.bundle(run)
    with store.engine.connect() as connection:
        job, message = queue.job_states(connection, [run]).get(run, ("none", ""))
    return Receipt(
        id=run,
        name=bundle.provenance.run,
        submitter=publication.submitter,
        state=bundle.history[-1].state.value,
        verification=Verification(state=str(job), message=message),  # type: ignore[arg-type]
        page=f"/runs/{run}",
    )


def visible_receipt(store: Store, run: str, caller: Caller | None) -> Receipt:
    """Return the state of a bundle, if the caller may see it."""
    run_receipt = receipt(store, run)
    is_theirs = caller and (caller.submitter == run_receipt.submitter or caller.may(Role.MAINTAINER))
    if run_receipt.state == "quarantined" and not is_theirs:
        raise run_not_found(run)
    return run_receipt


def receipts_in_state(store: Store, state: str) -> list[Receipt]:
    """Return the bundles in a state, the oldest first, at most 200."""
    statement = (
        select(PUBLICATIONS.c.run)
        .join(RUNS, RUNS.c.id == PUBLICATIONS.c.run)
        .where(RUNS.c.state == state)
        .order_by(PUBLICATIONS.c.received_at)
        .limit(200)
    )
    with store.engine.connect() as connection:
        runs = connection.execute(statement).scalars().all()
    return [receipt(store, run) for run in runs]


OPERATOR = Caller("operator", Role.ADMIN)
"""The caller with write access to the data directory."""


@dataclass(frozen=True, slots=True)
class LocalAdmin:
    """A data directory with the operations that `client.Leaderboard` requests from a server."""

    store: Store

    def withdraw(self, run: str, note: str) -> Receipt:
        """Take a run back."""
        reconcile(self.store, load_settings(self.store.data))
        withdraw(self.store, OPERATOR, run, note)
        return self._noted("withdrawn", run)

    def approve(self, run: str, note: str) -> Receipt:
        """List a run that waits."""
        settings = load_settings(self.store.data)
        reconcile(self.store, settings)
        approve(self.store, settings, OPERATOR, run, note)
        return self._noted("approved", run)

    def waiting(self) -> list[Receipt]:
        """Return the bundles in quarantine."""
        reconcile(self.store, load_settings(self.store.data))
        return receipts_in_state(self.store, "quarantined")

    def _noted(self, event: str, run: str) -> Receipt:
        tokens.log_event(self.store.data, event, run=run, submitter=OPERATOR.submitter)
        return receipt(self.store, run)
