"""Workers: they take jobs from the queue, recompute runs and record the verdict."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.base.text import counted, json_decoder
from ccl_bench.leaderboard.bundle.format import LISTED
from ccl_bench.leaderboard.publishing import queue, tokens
from ccl_bench.leaderboard.publishing.confinement import missing_protection
from ccl_bench.leaderboard.publishing.ingest import remove_dead_uploads, upload_folder
from ccl_bench.leaderboard.publishing.publications import (
    TRACES_FOLDER,
    is_readable_storage,
    publication_lock,
    reconcile,
)
from ccl_bench.leaderboard.publishing.queue import JobState
from ccl_bench.leaderboard.publishing.recompute import Interrupted, differences, fetch_run, recompute_run
from ccl_bench.leaderboard.publishing.settings import FILE as SETTINGS
from ccl_bench.leaderboard.publishing.settings import load_settings
from ccl_bench.leaderboard.store import State, new_event, open_store, writing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.leaderboard.publishing.queue import RecomputeJob
    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store import Store

_POLL_S = 1.0
"""Time between polls of an empty queue."""
_CLEAN_UP_S = 60.0
"""Time between clean-ups after killed processes."""
SERVER = "server"
"""Author of an automatic change of state."""


@dataclass(slots=True)
class Worker:
    """One worker on a store; several may work side by side."""

    store: Store
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
    is_stopping: bool = False
    _renewed: float = 0.0
    _cleaned_at: float | None = None

    def run(self, *, until_empty: bool = False, parent: int | None = None) -> int:
        """Work until stopped, and return the number of finished jobs.

        With `until_empty` it stops when no job is due, with `parent` when that process is dead. Raises
        InputError if the sandbox that the settings require is missing.
        """

        def stop(*_signal: object) -> None:
            self.is_stopping = True

        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, stop)
        log_protection(self.store)
        finished_jobs = 0
        while not self.is_stopping and parent in {None, os.getppid()}:
            try:
                worked = self._work_once()
            except SQLAlchemyError as error:
                tokens.log_event(self.store.data, "database-failed", reason=str(error))
                worked = False
            finished_jobs += worked
            if not worked and until_empty:
                break
            if not worked:
                time.sleep(_POLL_S)
        return finished_jobs

    def _work_once(self) -> bool:
        """Clean up if it is time, work on the next job, and return whether there was one."""
        settings = load_settings(self.store.data)
        if self._cleaned_at is None or time.monotonic() - self._cleaned_at > _CLEAN_UP_S:
            reconcile(self.store, settings)
            if removed := remove_dead_uploads(self.store.data):
                tokens.log_event(self.store.data, "swept", uploads=removed)
            self._cleaned_at = time.monotonic()
        job = queue.claim(self.store.engine, self.name)
        if job:
            self._work(job, settings)
        return job is not None

    def _work(self, job: RecomputeJob, settings: Settings) -> None:
        """Recompute the run of a job and record the verdict, if the worker still holds the job."""
        self._renewed = time.monotonic()
        try:
            state, message = self._verdict(job, settings)
        except Interrupted:
            queue.release(self.store.engine, job, "the worker was stopped", is_fault=False)
            return
        except (CclBenchError, OSError) as error:
            reason = (
                error.message if isinstance(error, CclBenchError) else error.strerror or "no reason given"
            )
            queue.release(self.store.engine, job, reason)
            tokens.log_event(
                self.store.data, "recompute-failed", run=job.run, attempt=job.attempt, reason=str(error)
            )
            return
        with publication_lock(self.store):
            with self.store.engine.connect() as connection:
                if not queue.is_held(connection, job):
                    return
            # The history first: after a crash in between, the next worker sees it.
            last = self.store.bundle(job.run).history[-1].state
            if state is JobState.VERIFIED and last is State.SELF_REPORTED:
                self.store.record(job.run, new_event(State.VERIFIED, SERVER, message))
            if state is JobState.DIFFERENT and last in LISTED:
                note = f"recomputed numbers differ: {message}"
                self.store.record(job.run, new_event(State.QUARANTINED, SERVER, note))
            with writing(self.store.engine) as connection:
                queue.finish(connection, job, state, message)
        tokens.log_event(self.store.data, "recomputed", run=job.run, verdict=state.value, reason=message)

    def _verdict(self, job: RecomputeJob, settings: Settings) -> tuple[JobState, str]:
        """Recompute the run of a job and return the verdict with its message."""
        bundle = self.store.bundle(job.run)
        with upload_folder(self.store.data) as folder:
            place, scratch = self.store.data / TRACES_FOLDER / job.run, folder / "scratch"
            scratch.mkdir()
            if not place.is_dir():
                place = folder / "run"
                address = bundle.provenance.trace_url or ""
                if not is_readable_storage(address, settings):
                    return JobState.FAILED, "the traces are no longer available"
                fetch_run(bundle.provenance, address, place, settings, lambda: self._may_go_on(job))
            answer = recompute_run(bundle, place, scratch, settings, lambda: self._may_go_on(job))
        if answer.error:
            return JobState.FAILED, answer.error
        mismatches = differences(bundle, answer)
        if mismatches:
            return JobState.DIFFERENT, "; ".join(mismatches)
        values = sum(result.value is not None for result in bundle.results)
        return JobState.VERIFIED, f"{counted(values, 'number')} recomputed with ccl-bench {__version__}"

    def _may_go_on(self, job: RecomputeJob) -> bool:
        """Renew the lease if it is time, and return whether to continue the job."""
        if self.is_stopping:
            return False
        if time.monotonic() - self._renewed < queue.LEASE_S / 4:
            return True
        self._renewed = time.monotonic()
        return queue.renew(self.store.engine, job)


def log_protection(store: Store) -> None:
    """Log the missing parts of the sandbox; raise InputError if the operator requires all of it."""
    missing = "; ".join(missing_protection())
    tokens.log_event(store.data, "sandbox", missing=missing or "nothing")
    if missing and load_settings(store.data).sandbox == "required":
        fix = 'install what is missing, or set sandbox = "available"'
        raise InputError(f"the sandbox lacks {missing}", where=str(store.data / SETTINGS), fix=fix)


_STOP_TIMEOUT_S = 10.0
"""Time for a worker to stop."""
_RESTART_PAUSE_S = 1.0
"""Time before a dead worker is replaced."""


class _WorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of a worker; passed on stdin, because an address may hold a password."""

    data: str
    database: str | None
    parent: int


_CONFIG = json_decoder(_WorkerConfig)


@contextlib.contextmanager
def run_workers(data: Path, database: str | None, count: int) -> Iterator[None]:
    """Run some workers for the lifetime of the context."""
    place = msgspec.json.encode(_WorkerConfig(str(data.resolve()), database, os.getpid()))
    stopping = threading.Event()
    keepers = [threading.Thread(target=_keep_worker_running, args=(place, stopping)) for _ in range(count)]
    try:
        for keeper in keepers:
            keeper.start()
        yield
    finally:
        stopping.set()
        for keeper in keepers:
            keeper.join()


def _keep_worker_running(place: bytes, stopping: threading.Event) -> None:
    """Keep one worker running until the server stops."""
    command = [sys.executable, "-m", "ccl_bench.leaderboard.publishing.worker"]
    while not stopping.is_set():
        # Its own session: Ctrl-C reaches only the server, which then stops the worker.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603  own module
        assert process.stdin is not None  # noqa: S101  it is a pipe
        with process.stdin, contextlib.suppress(BrokenPipeError):
            process.stdin.write(place)
        while process.poll() is None and not stopping.wait(_RESTART_PAUSE_S):
            pass
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
        process.kill()
        process.wait()


def main() -> None:
    """Run a worker as configured on stdin."""
    place = _CONFIG.decode(sys.stdin.buffer.read())
    data = Path(place.data)
    try:
        store = open_store(data, place.database)
    except CclBenchError as error:  # the server starts another worker, until the database answers
        tokens.log_event(data, "database-failed", reason=error.message)
        sys.exit(error.exit_status)
    Worker(store).run(parent=place.parent)


if __name__ == "__main__":
    main()
