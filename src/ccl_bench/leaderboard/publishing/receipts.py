"""What is told of a published bundle to those who sent it or look after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench.leaderboard.publishing import queue
from ccl_bench.leaderboard.publishing.curating import missing
from ccl_bench.leaderboard.publishing.models import Receipt, Verification
from ccl_bench.leaderboard.publishing.settling import publication
from ccl_bench.leaderboard.publishing.tables import PUBLICATIONS
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store.bundle import ID
from ccl_bench.leaderboard.store.tables import RUNS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ccl_bench.leaderboard.publishing.tokens import Caller
    from ccl_bench.leaderboard.store import Store

_MOST = 200


def receipt(store: Store, run: str) -> Receipt:
    """Return what a bundle counts as; raise Refused where there is none."""
    with store.engine.connect() as connection:
        return _receipt(store, connection, run)


def visible(store: Store, run: str, caller: Caller | None) -> Receipt:
    """Return what a bundle counts as, to somebody who may know it."""
    found = receipt(store, run)
    is_theirs = caller and (caller.submitter == found.submitter or caller.may(Role.MAINTAINER))
    if found.state == "quarantined" and not is_theirs:
        raise missing(run)
    return found


def in_state(store: Store, state: str) -> list[Receipt]:
    """Return the bundles in a state, the oldest first."""
    asked = (
        select(PUBLICATIONS.c.run)
        .join(RUNS, RUNS.c.id == PUBLICATIONS.c.run)
        .where(RUNS.c.state == state)
        .order_by(PUBLICATIONS.c.received_at)
        .limit(_MOST)
    )
    with store.engine.connect() as connection:
        return [_receipt(store, connection, run) for run in connection.execute(asked).scalars().all()]


def _receipt(store: Store, connection: Connection, run: str) -> Receipt:
    found = publication(connection, run) if ID.fullmatch(run) else None
    if found is None:
        raise missing(run)
    bundle = store.bundle(run)
    job, message = queue.states_of(connection, [run]).get(run, ("none", ""))
    return Receipt(
        id=run,
        name=bundle.provenance.run,
        submitter=found.submitter,
        state=bundle.history[-1].state.value,
        verification=Verification(state=str(job), message=message),  # type: ignore[arg-type]
        page=f"/runs/{run}",
    )
