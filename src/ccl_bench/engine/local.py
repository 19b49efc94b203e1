"""Reduce the traces of a run on this machine, several at a time where that pays."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import analysis
from ccl_bench.engine.reduction import Reduced, Task, reduced
from ccl_bench.frames import pl
from ccl_bench.trace import cache

if TYPE_CHECKING:
    from collections.abc import Sequence


Progress = Callable[[int, int], None]
"""Called with the number of traces done and the number in all."""

POOL_WORTH_BYTES = 4 << 20
"""Bytes still to be parsed, as they lie on disk, below which starting workers costs more than it saves."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _unread(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if not (task.use_cache and cache.is_kept(task.trace))]


def _start_method() -> str:
    """Return how to start workers: a fork is safe, and quick, only while there is no other thread."""
    threads = Path("/proc/self/task")
    single = threads.is_dir() and len(list(threads.iterdir())) == 1
    return "fork" if single else "forkserver"


def _one_thread_each() -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"


def run(tasks: Sequence[Task], *, jobs: int | None = None, progress: Progress | None = None) -> list[Reduced]:
    """Return what each task came to, in the order of the tasks.

    `jobs` bounds the number of workers; by default as many as there are cores. `progress`
    is called with (done, total) after each trace.
    """
    unread = _unread(tasks)
    workers = min(jobs or cores(), len(unread))
    if workers < 2 or sum(task.trace.size for task in unread) < POOL_WORTH_BYTES:
        return _in_process(tasks, progress)
    return _in_pool(tasks, _pool(unread, workers), progress)


def _pool(unread: Sequence[Task], workers: int) -> Executor:
    """Return threads where they do not wait for each other; processes each import polars first."""
    if all(form.reads_in_threads() for form in {task.trace.form for task in unread}):
        analysis.load()
        _ = pl.DataFrame()  # polars is imported at first use, which two threads must not come to at once
        return ThreadPoolExecutor(workers)
    context = multiprocessing.get_context(_start_method())
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread_each)


def _in_process(tasks: Sequence[Task], progress: Progress | None) -> list[Reduced]:
    results = []
    for task in tasks:
        results.append(reduced(task))
        if progress:
            progress(len(results), len(tasks))
    return results


def _in_pool(tasks: Sequence[Task], executor: Executor, progress: Progress | None) -> list[Reduced]:
    with executor as pool:
        try:
            futures = {pool.submit(reduced, task): position for position, task in enumerate(tasks)}
            results: dict[int, Reduced] = {}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                if progress:
                    progress(len(results), len(tasks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[position] for position in range(len(tasks))]
