"""Reduce traces in processes of this machine; a trace that kills its process leaves the others alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.engine.reduction import Answers, Task, reduced, unread
from ccl_bench.engine.room import PROCESS_BYTES, room_bytes
from ccl_bench.engine.turns import WorkersDied, in_turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.run.trace_tables import Reduced

ATTEMPTS = 3
"""Times that a trace may be begun before it is given up: once beside others, then alone."""


def in_processes(tasks: Sequence[Task], workers: int) -> Answers:
    """Yield each task's number and what it came to, from at most `workers` processes at a time.

    Where a process dies, those that were at work begin again, each alone, which tells whose fault it was.
    """
    remaining = dict(enumerate(tasks))
    while remaining:
        try:
            for position, result in _beside_each_other(remaining, workers):
                del remaining[position]
                yield position, result
        except WorkersDied as death:
            for position in death.positions:
                yield position, _alone(remaining.pop(position))


def _beside_each_other(tasks: dict[int, Task], workers: int) -> Answers:
    room = room_bytes()
    workers = max(1, min(workers, len(tasks), room // PROCESS_BYTES))
    with _pool(workers) as pool:
        yield from in_turn(
            dict(tasks),
            lambda task: pool.submit(reduced, task),
            workers=workers,
            room=room - workers * PROCESS_BYTES,
        )


def _alone(task: Task) -> Reduced:
    """Return what a task comes to in a process of its own, or that it cannot be done."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(WorkersDied):
            for _, result in _beside_each_other({0: task}, 1):
                return result
    return given_up(task, ATTEMPTS)


def given_up(task: Task, attempts: int) -> Reduced:
    """Return what a trace comes to that killed whoever read it."""
    times = f"each of {attempts} workers" if attempts > 1 else "the worker"
    return unread(task, "worker-died", f"{times} that read it died, as when memory runs out")


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool whose processes are gone at the end, also while they are at work."""
    before = {process.pid for process in multiprocessing.active_children()}
    context = multiprocessing.get_context(_start_method())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_as_worker)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.terminate()
        raise


def _start_method() -> str:
    """Return how to start workers: a fork is safe, and quick, only while there is no other thread."""
    threads = Path("/proc/self/task")
    single = threads.is_dir() and len(list(threads.iterdir())) == 1
    return "fork" if single else "forkserver"


def _as_worker() -> None:
    """Leave Ctrl-C to the process that started this one, and the other cores to the other workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["POLARS_MAX_THREADS"] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one is gone that it works for, which may have had no time to say so."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
