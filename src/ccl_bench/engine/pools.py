"""Pools of threads and subprocesses that read traces, as many at once as fit into memory.

A trace that kills its subprocess leaves the others alone; threads stop reading as soon as the rest is not
needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing import context
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.lazy_imports import pl
from ccl_bench.engine.read_trace import Task, TraceStream, read_trace, unread_trace
from ccl_bench.trace.memory import memory_budget_bytes, needed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from ccl_bench.run.trace_tables import TraceTables

ATTEMPTS = 3
"""Times that a trace may be begun before it is given up: once beside others, then alone."""


def read_in_threads(tasks: Sequence[Task], workers: int) -> TraceStream:
    """Yield each task's number and its outcome, from at most `workers` threads at a time."""
    DERIVED.load()
    _ = pl.DataFrame()  # polars is imported at first use, which two threads must not do at once
    with _thread_pool(workers) as submit:
        yield from run_bounded(dict(enumerate(tasks)), submit, workers=workers, room=memory_budget_bytes())


@contextlib.contextmanager
def _thread_pool(workers: int) -> Iterator[Callable[[Task], Future[TraceTables]]]:
    """Give the function that submits tasks to threads; leaving the block early interrupts those at work."""
    at_work: set[int] = set()
    changing = threading.Lock()

    def reduce_there(task: Task) -> TraceTables:
        with changing:
            at_work.add(threading.get_ident())
        try:
            return read_trace(task)
        finally:
            with changing:
                at_work.remove(threading.get_ident())

    with ThreadPoolExecutor(workers) as pool:
        try:
            yield lambda task: pool.submit(reduce_there, task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Each unwinds as at Ctrl-C: what it opened is tidied up.
            raised = ctypes.py_object(KeyboardInterrupt)
            with changing:
                for thread in at_work:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
            raise


def read_in_subprocesses(tasks: Sequence[Task], workers: int) -> TraceStream:
    """Yield each task's number and its outcome, from at most `workers` processes at a time.

    Where a process dies, those that were at work begin again, each alone, which shows whose fault it was.
    """
    remaining = dict(enumerate(tasks))
    while remaining:
        try:
            for position, result in _read_in_pool(remaining, workers):
                del remaining[position]
                yield position, result
        except WorkersDied as death:
            for position in death.positions:
                yield position, _read_alone(remaining.pop(position))


def _read_in_pool(tasks: dict[int, Task], workers: int) -> TraceStream:
    room = memory_budget_bytes()
    workers = max(1, min(workers, len(tasks), room // PROCESS_BYTES))
    with _process_pool(workers) as pool:
        yield from run_bounded(
            dict(tasks),
            lambda task: pool.submit(read_trace, task),
            workers=workers,
            room=room - workers * PROCESS_BYTES,
        )


def _read_alone(task: Task) -> TraceTables:
    """Return the outcome of a task in a separate process, or that it cannot be done."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(WorkersDied):
            for _, result in _read_in_pool({0: task}, 1):
                return result
    return abandoned_trace(task, ATTEMPTS)


def abandoned_trace(task: Task, attempts: int) -> TraceTables:
    """Return the result for a trace that killed every process that read it."""
    times = f"each of {attempts} workers" if attempts > 1 else "the worker"
    return unread_trace(task, "worker-died", f"{times} that read it died, probably because memory ran out")


@contextlib.contextmanager
def _process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool whose processes are gone at the end, also while they are at work."""
    before = {process.pid for process in multiprocessing.active_children()}
    start = multiprocessing.get_context("fork") if can_fork() else _WorkerContext()
    pool = ProcessPoolExecutor(workers, mp_context=start, initializer=_set_up_worker)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.terminate()
        # The pool's own thread must be done too: Python's exit would wake it while it closes its pipe.
        pool.shutdown(cancel_futures=True)
        raise


def can_fork() -> bool:
    """Whether workers may be forked, which is quick: it is safe only while there is no other thread."""
    threads = Path("/proc/self/task")
    return threads.is_dir() and len(list(threads.iterdir())) == 1


# Windows has no fork server, and starts a Python for each worker.
_Process = getattr(context, "ForkServerProcess", context.SpawnProcess)
_Context = getattr(context, "ForkServerContext", context.SpawnContext)


class _Worker(_Process):  # type: ignore[misc, valid-type]
    """A process that does not import the program which started it.

    Python's own would run a script again from its top, which a script without `if __name__ == "__main__"`
    does not survive; workers need nothing of it.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  Python's name
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return _Process._Popen(process_obj)
        finally:
            sys.modules["__main__"] = program


class _WorkerContext(_Context):  # type: ignore[misc, valid-type]
    Process = _Worker


def _set_up_worker() -> None:
    """Leave Ctrl-C to the process that started this one, and the other cores to the other workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["POLARS_MAX_THREADS"] = "1"

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    # The process that this one works for may have no time to say that it ends.
    threading.Thread(target=end_with_parent, daemon=True).start()


PROCESS_BYTES = 128 << 20
"""Memory of a worker process before it reads anything."""

_LOOK_S = 60.0
"""Longest wait at a time, s. One without an end is deaf to Ctrl-C: polars has the system take it up again."""


class WorkersDied(Exception):  # noqa: N818 (an event to act on, no error to report)
    """The workers are gone; what they were working on is not done."""

    def __init__(self, positions: list[int]) -> None:
        super().__init__(positions)
        self.positions = positions
        """Tasks that were being worked on: one of them is likely to have killed its worker."""


def run_bounded(
    tasks: Mapping[int, Task], submit: Callable[[Task], Future[TraceTables]], *, workers: int, room: int
) -> TraceStream:
    """Yield each task's number and its outcome, as soon as it is done.

    Tasks begin in order. At most `workers` are in hand, and what these need stays below `room`
    bytes; a task that needs more than that is worked on alone.
    """
    waiting = [(position, task, needed_bytes(task.trace)) for position, task in tasks.items()][::-1]
    running: dict[Future[TraceTables], tuple[int, int]] = {}
    try:
        while waiting or running:
            taken_bytes = sum(needed for _, needed in running.values())
            while waiting and len(running) < workers:
                position, task, needed = waiting[-1]
                if running and taken_bytes + needed > room:
                    break
                waiting.pop()
                running[submit(task)] = position, needed
                taken_bytes += needed
            done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: running[each][0]):
                result = future.result()
                yield running.pop(future)[0], result
    except BrokenExecutor as error:
        raise WorkersDied([position for position, _ in running.values()]) from error
