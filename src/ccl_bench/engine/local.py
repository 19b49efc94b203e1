"""Reduce the traces of a run in this process, several at a time where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ccl_bench.engine.processes import in_processes
from ccl_bench.engine.reduction import reduced
from ccl_bench.engine.threads import in_threads
from ccl_bench.trace import cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.engine.reduction import Answers, Task

Engine = Callable[["Sequence[Task]", int | None], "Answers"]
"""Reads traces with at most so many workers."""

Progress = Callable[[int, int], None]
"""Called with the number of traces done and the number in all."""

POOL_WORTH_BYTES = 4 << 20
"""Bytes still to be parsed, as they lie on disk, below which starting workers costs more than it saves."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def as_pays(tasks: Sequence[Task], jobs: int | None) -> Answers:
    """Yield each task's number and what it came to: here, in threads, or in processes.

    `jobs` bounds the number of workers; by default as many as there are cores.
    """
    workers = _workers_that_pay(tasks, jobs)
    if workers > 1 and not _reads_in_threads(tasks):
        return in_processes(tasks, workers)
    return in_threads(tasks, workers) if workers > 1 else _one_by_one(tasks)


def here(tasks: Sequence[Task], jobs: int | None) -> Answers:
    """Yield each task's number and what it came to, all in this process."""
    workers = _workers_that_pay(tasks, jobs)
    if workers > 1 and _reads_in_threads(tasks):
        return in_threads(tasks, workers)
    return _one_by_one(tasks)


def beside(tasks: Sequence[Task], jobs: int | None) -> Answers:
    """Yield each task's number and what it came to, none in this process."""
    return in_processes(tasks, jobs or cores())


def _unread(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if not (task.use_cache and cache.is_kept(task.trace))]


def _workers_that_pay(tasks: Sequence[Task], jobs: int | None) -> int:
    left = _unread(tasks)
    pays = sum(task.trace.size for task in left) >= POOL_WORTH_BYTES
    return min(jobs or cores(), len(left)) if pays else 1


def _reads_in_threads(tasks: Sequence[Task]) -> bool:
    """Whether threads do not wait for each other; processes each import polars first."""
    return all(form.reads_in_threads() for form in {task.trace.form for task in _unread(tasks)})


def _one_by_one(tasks: Sequence[Task]) -> Answers:
    for position, task in enumerate(tasks):
        yield position, reduced(task)
