"""The worker: takes jobs from the queue, recomputes runs, and writes down what came of it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError
from ccl_bench.leaderboard.publishing import audit, queue
from ccl_bench.leaderboard.publishing.agreement import differences
from ccl_bench.leaderboard.publishing.fetching import fetch
from ccl_bench.leaderboard.publishing.incoming import incoming, sweep
from ccl_bench.leaderboard.publishing.queue import JobState
from ccl_bench.leaderboard.publishing.recomputing import Interrupted, recomputed
from ccl_bench.leaderboard.publishing.settings import settings_of
from ccl_bench.leaderboard.publishing.settling import TRACES, deciding, may_be_read, settle_all
from ccl_bench.leaderboard.store import State, event, writing
from ccl_bench.leaderboard.store.history import LISTED
from ccl_bench.report.formatting import counted

if TYPE_CHECKING:
    from ccl_bench.leaderboard.publishing.queue import Job
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store import Store
    from ccl_bench.leaderboard.store.bundle import Bundle

_LOOK_S = 1.0
"""Time between looks at an empty queue."""
_TIDY_S = 60.0
"""Time between looks for what killed processes left behind."""
SERVER = "server"
"""Who a change of state is by when nobody asked for it."""


@dataclass(slots=True)
class Worker:
    """One worker on a store; several may work side by side."""

    store: Store
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
    is_stopping: bool = False
    _renewed: float = 0.0
    _tidied: float | None = None

    def run(self, *, until_empty: bool = False, parent: int | None = None) -> int:
        """Work until told to stop, and return the number of jobs that were ended.

        With `until_empty` it stops when nothing is due, with `parent` when that process is dead.
        """
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._stop)
        done = 0
        while not self.is_stopping and parent in {None, os.getppid()}:
            try:
                worked = self._turn()
            except SQLAlchemyError as error:
                audit.note(self.store.data, "database-failed", reason=str(error))
                worked = False
            done += worked
            if not worked and until_empty:
                break
            if not worked:
                time.sleep(_LOOK_S)
        return done

    def _turn(self) -> bool:
        """Tidy up where it is time to, work on the next job, and return whether there was one."""
        settings = settings_of(self.store.data)
        if self._tidied is None or time.monotonic() - self._tidied > _TIDY_S:
            self._tidy(settings)
            self._tidied = time.monotonic()
        job = queue.claim(self.store.engine, self.name)
        if job:
            self._work(job, settings)
        return job is not None

    def _stop(self, *_signal: object) -> None:
        self.is_stopping = True

    def _tidy(self, settings: Settings) -> None:
        settle_all(self.store, settings)
        removed = sweep(self.store.data)
        if removed:
            audit.note(self.store.data, "swept", uploads=removed)

    def _work(self, job: Job, settings: Settings) -> None:
        self._renewed = time.monotonic()
        try:
            state, message = self._verdict(job, settings)
        except Interrupted:
            queue.put_back(self.store.engine, job, "the worker was stopped", is_fault=False)
            return
        except (CclBenchError, OSError) as error:
            reason = (
                error.message if isinstance(error, CclBenchError) else error.strerror or "no reason given"
            )
            queue.put_back(self.store.engine, job, reason)
            audit.note(
                self.store.data, "recompute-failed", run=job.run, attempt=job.attempt, reason=str(error)
            )
            return
        self._conclude(job, state, message)

    def _verdict(self, job: Job, settings: Settings) -> tuple[JobState, str]:
        """Return what came of a job and what is to be said of it."""
        bundle = self.store.bundle(job.run)
        with incoming(self.store.data) as folder:
            place, scratch = self.store.data / TRACES / job.run, folder / "scratch"
            scratch.mkdir()
            if not place.is_dir():
                place = folder / "run"
                address = bundle.provenance.trace_url or ""
                if not may_be_read(address, settings):
                    return JobState.FAILED, "the traces are not here any more"
                fetch(bundle.provenance, address, place, settings, lambda: self._may_go_on(job))
            answer = recomputed(bundle, place, scratch, settings, lambda: self._may_go_on(job))
        if answer.error:
            return JobState.FAILED, answer.error
        told = differences(bundle, answer)
        if told:
            return JobState.DIFFERENT, "; ".join(told)
        values = sum(result.value is not None for result in bundle.results)
        return JobState.VERIFIED, f"{counted(values, 'number')} recomputed with ccl-bench {__version__}"

    def _may_go_on(self, job: Job) -> bool:
        """Renew the lease where it is time to, and return whether the job is still to be worked on."""
        if self.is_stopping:
            return False
        if time.monotonic() - self._renewed < queue.LEASE_S / 4:
            return True
        self._renewed = time.monotonic()
        return queue.renew(self.store.engine, job)

    def _conclude(self, job: Job, state: JobState, message: str) -> None:
        """Write down a verdict, in the history first: who comes after a crash in between finds it there."""
        with deciding(self.store):
            with self.store.engine.connect() as connection:
                if not queue.is_held(connection, job):
                    return
            self._record(self.store.bundle(job.run), state, message)
            with writing(self.store.engine) as connection:
                queue.end(connection, job, state, message)
        audit.note(self.store.data, "recomputed", run=job.run, verdict=state.value, reason=message)

    def _record(self, bundle: Bundle, state: JobState, message: str) -> None:
        last = bundle.history[-1].state
        if state is JobState.VERIFIED and last is State.SELF_REPORTED:
            self.store.record(bundle.id, event(State.VERIFIED, SERVER, message))
        if state is JobState.DIFFERENT and last in LISTED:
            self.store.record(
                bundle.id, event(State.QUARANTINED, SERVER, f"recomputed numbers differ: {message}")
            )
