"""Choice of the engine that reads the traces of a run: by name, or by size and number of the traces.

Pools and clusters are imported where they are used: one trace needs none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.engine.read_trace import ConcatenatedTables, Engine, Task, TraceStream, read_trace
from ccl_bench.trace import cache, memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.engine.read_trace import Tables
    from ccl_bench.run.trace_tables import TraceTables

Progress = Callable[[float, int], None]
"""Called with the number of traces done, the part of one at work included, and the number in all."""

POOL_WORTH_BYTES = 4 << 20
"""Bytes still to be parsed, as they lie on disk, below which starting workers costs more than it saves."""


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows cannot restrict a process to some


def auto(tasks: Sequence[Task], jobs: int | None) -> TraceStream:
    """Yield each task's number and its outcome: here, in threads, or in processes.

    `jobs` bounds the number of workers; by default as many as there are cores.
    """
    return _in_threads_or(_in_subprocesses, tasks, jobs)


def in_process(tasks: Sequence[Task], jobs: int | None) -> TraceStream:
    """Yield each task's number and its outcome, all in this process."""
    return _in_threads_or(_one_by_one, tasks, jobs)


def in_subprocesses(tasks: Sequence[Task], jobs: int | None) -> TraceStream:
    """Yield each task's number and its outcome, none in this process."""
    return _in_subprocesses(tasks, jobs or count_cores())


def _in_subprocesses(tasks: Sequence[Task], workers: int) -> TraceStream:
    from ccl_bench.engine.pools import read_in_subprocesses

    return read_in_subprocesses(tasks, workers)


def _in_threads_or(
    otherwise: Callable[[Sequence[Task], int], TraceStream], tasks: Sequence[Task], jobs: int | None
) -> TraceStream:
    """Read in threads, or `otherwise` if they would wait for each other; one by one where workers do not pay.

    Threads come first because each process imports polars anew.
    """
    left = [task for task in tasks if not (task.use_cache and cache.is_cached(task.trace))]
    workers = min(jobs or count_cores(), len(left))
    if workers <= 1 or sum(task.trace.size for task in left) < POOL_WORTH_BYTES:
        return _one_by_one(tasks)
    if all(form.reads_in_threads() for form in {task.trace.form for task in left}):
        from ccl_bench.engine.pools import read_in_threads

        return read_in_threads(tasks, workers)
    return otherwise(tasks, workers)


def _one_by_one(tasks: Sequence[Task], _workers: int = 1) -> TraceStream:
    for position, task in enumerate(tasks):
        yield position, read_trace(task)


_LOCAL: dict[str, Engine] = {
    "auto": auto,
    "local": in_process,
    "processes": in_subprocesses,
}
_SCHEDULERS = ("dask", "tcp", "tls")
_SLURM = "slurm"

NAMES = (*_LOCAL, "dask://HOST:PORT", _SLURM)
"""What a name may look like."""

_IN_USE: ContextVar[Engine] = ContextVar("engine", default=auto)
"""Set by `use_engine` alone: jobs of a cluster are shared by all that one command reads."""


@contextlib.contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Read traces with the engine of this name until the end of the block.

    `auto`, `local` (all in this process), `processes`, the address of a Dask scheduler, or `slurm` with
    options as in `slurm:queue=debug,cores=4`. Raises UsageError for another name, and at the first trace
    InputError if a cluster cannot be reached.
    """
    kind, colon, rest = name.partition(":")
    kind = spelling(kind)
    opened: contextlib.AbstractContextManager[Engine]
    if kind in _LOCAL and not colon:
        opened = contextlib.nullcontext(_LOCAL[kind])
    elif kind in _SCHEDULERS and rest.startswith("//") and rest != "//":
        from ccl_bench.engine.dask import connect_dask

        opened = connect_dask(f"{kind.replace('dask', 'tcp')}:{rest}")
    elif kind == _SLURM:
        from ccl_bench.engine.slurm import start_jobs

        opened = start_jobs(rest)
    else:
        hint = f"one of: {', '.join(NAMES)}"
        raise UsageError(f"unknown engine {name!r}", fix=did_you_mean(kind, [*_LOCAL, _SLURM]) or hint)
    with opened as engine:
        token = _IN_USE.set(engine)
        try:
            yield
        finally:
            _IN_USE.reset(token)


def stream_traces(
    tasks: Sequence[Task], *, jobs: int | None = None, progress: Progress | None = None
) -> TraceStream:
    """Yield each task's number and its outcome, as they are done, by the engine in use.

    `jobs` bounds the number of workers. `progress` is called with (done, total) after each trace, and while
    one is read in this process.
    """
    done = 0

    def show(share: float) -> None:
        if progress:
            progress(done + share, len(tasks))

    with contextlib.closing(_IN_USE.get()(tasks, jobs)) as answers, memory.watch_reading(show):
        for answer in answers:
            done += 1
            show(0)
            yield answer


def read_traces(
    tasks: Sequence[Task], *, jobs: int | None = None, progress: Progress | None = None
) -> list[TraceTables]:
    """Return the outcome of each task, in the order of the tasks."""
    traces = dict(stream_traces(tasks, jobs=jobs, progress=progress))
    return [traces[position] for position in range(len(tasks))]


def read_concatenated(
    tasks: Sequence[Task], names: Sequence[str], *, jobs: int | None = None, progress: Progress | None = None
) -> tuple[list[TraceTables], Tables]:
    """Return the outcome of each task, without its tables, and the named tables of all tasks as one each."""
    together = ConcatenatedTables(names, len(tasks))
    traces: dict[int, TraceTables] = {}
    with contextlib.closing(stream_traces(tasks, jobs=jobs, progress=progress)) as answers:
        for position, trace in answers:
            together.take(position, trace)
            traces[position] = trace
    return [traces[position] for position in range(len(tasks))], together.tables()
