"""The queue of runs to recompute: in the database, for any number of workers.

A worker leases a job and renews the lease while it works. When a worker dies, its lease expires and another
worker takes the job. A worker that lost its lease cannot finish the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import and_, insert, or_, select, update

from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import JOBS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Engine
    from sqlalchemy.sql.elements import ColumnElement

LEASE_S = 60.0
"""Time after which a worker that did not renew its lease counts as dead."""
MAX_ATTEMPTS = 3
"""Attempts before a job fails."""
_PAUSES_S = (0.0, 5.0, 30.0)
"""Time before the next attempt, by attempts made."""
_MOVED_S = 3600.0
"""Longer than any lease and pause, and the clocks of machines that share a database differ by less."""


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    VERIFIED = "verified"
    """The recomputed numbers agree with the bundle."""
    DIFFERENT = "different"
    """The recomputed numbers differ."""
    FAILED = "failed"
    """There are no numbers to compare with; the message states the fix."""


ENDED = (JobState.VERIFIED, JobState.DIFFERENT, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class RecomputeJob:
    """A job that a worker holds."""

    run: str
    attempt: int
    holder: str


def enqueue(connection: Connection, run: str) -> None:
    """Queue a run for recomputing, unless it has a job."""
    if connection.execute(select(JOBS.c.run).where(JOBS.c.run == run)).first() is None:
        connection.execute(
            insert(JOBS), [{"run": run, "queued_at": timestamp(), **_FRESH, "due_at": timestamp()}]
        )


def requeue(connection: Connection, run: str) -> None:
    """Queue a run for recomputing, whatever the result of earlier jobs."""
    enqueue(connection, run)
    again = update(JOBS).where(JOBS.c.run == run, JOBS.c.state.in_([state.value for state in ENDED]))
    connection.execute(again.values(**_FRESH, due_at=timestamp()))


_FRESH = {"state": JobState.WAITING.value, "attempts": 0, "holder": None, "ended_at": None, "message": ""}


def claim(engine: Engine, holder: str) -> RecomputeJob | None:
    """Lease the next job to a worker and return it; None if no job is due.

    Concurrent claims never get the same job: PostgreSQL skips locked rows, SQLite serialises writers.
    """
    with engine.connect() as connection:
        if connection.execute(select(JOBS.c.run).where(_is_due()).limit(1)).first() is None:
            return None
    with writing(engine) as connection:
        first = select(JOBS.c.run, JOBS.c.attempts).where(_is_due()).order_by(JOBS.c.queued_at, JOBS.c.run)
        row = connection.execute(first.limit(1).with_for_update(skip_locked=True)).first()
        if row is None:
            return None
        run, attempts = row
        if attempts >= MAX_ATTEMPTS:
            given_up = f"the worker died {attempts} times while it recomputed the run"
            _update_job(connection, run, _ended_values(JobState.FAILED, given_up))
            return None
        values = {
            "state": JobState.RUNNING.value,
            "attempts": attempts + 1,
            "holder": holder,
            "due_at": timestamp(LEASE_S),
        }
        _update_job(connection, run, values)
        return RecomputeJob(run, attempts + 1, holder)


def renew(engine: Engine, job: RecomputeJob) -> bool:
    """Extend the lease of a job, and return whether the worker still holds it."""
    with writing(engine) as connection:
        result = connection.execute(update(JOBS).where(_is_held(job)).values(due_at=timestamp(LEASE_S)))
        return result.rowcount == 1


def is_held(connection: Connection, job: RecomputeJob) -> bool:
    """Whether the worker still holds a job."""
    return connection.execute(select(JOBS.c.run).where(_is_held(job))).first() is not None


def finish(connection: Connection, job: RecomputeJob, state: JobState, message: str) -> None:
    """Record the result of a job, if the worker still holds it."""
    connection.execute(update(JOBS).where(_is_held(job)).values(**_ended_values(state, message)))


def release(engine: Engine, job: RecomputeJob, message: str, *, is_fault: bool = True) -> None:
    """Release a job for another attempt: later after a failure, at once if the worker was only stopped."""
    if is_fault and job.attempt >= MAX_ATTEMPTS:
        with writing(engine) as connection:
            finish(connection, job, JobState.FAILED, message)
        return
    again = {
        "state": JobState.WAITING.value,
        "attempts": job.attempt if is_fault else job.attempt - 1,
        "holder": None,
        "due_at": timestamp(_PAUSES_S[min(job.attempt, len(_PAUSES_S) - 1)] if is_fault else 0.0),
        "message": message,
    }
    with writing(engine) as connection:
        connection.execute(update(JOBS).where(_is_held(job)).values(**again))


def job_states(connection: Connection, runs: Sequence[str]) -> dict[str, tuple[JobState, str]]:
    """Return state and message of the jobs of runs; runs without a job are left out."""
    statement = select(JOBS.c.run, JOBS.c.state, JOBS.c.message).where(JOBS.c.run.in_(runs))
    return {run: (JobState(state), message) for run, state, message in connection.execute(statement)}


def _is_due() -> ColumnElement[bool]:
    """Return the condition that a waiting job is due, or that its worker's lease has expired.

    A time further ahead than `_MOVED_S` was set before the clock was moved back.
    """
    open_states = or_(JOBS.c.state == JobState.WAITING.value, JOBS.c.state == JobState.RUNNING.value)
    return and_(open_states, or_(JOBS.c.due_at <= timestamp(), JOBS.c.due_at > timestamp(_MOVED_S)))


def _is_held(job: RecomputeJob) -> ColumnElement[bool]:
    return and_(
        JOBS.c.run == job.run,
        JOBS.c.state == JobState.RUNNING.value,
        JOBS.c.holder == job.holder,
        JOBS.c.attempts == job.attempt,
    )


def _ended_values(state: JobState, message: str) -> dict[str, str | None]:
    return {"state": state.value, "message": message, "ended_at": timestamp(), "holder": None}


def _update_job(connection: Connection, run: str, values: Mapping[str, object]) -> None:
    connection.execute(update(JOBS).where(JOBS.c.run == run).values(**values))
