"""The engines by name, and reading the traces of a run with the one in use."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.engine import local
from ccl_bench.engine.read_trace import ConcatenatedTables
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.engine.local import Engine, Progress
    from ccl_bench.engine.read_trace import Tables, Task, TraceStream
    from ccl_bench.run.completeness import TraceTables

_LOCAL: dict[str, Engine] = {
    "auto": local.auto,
    "local": local.in_process,
    "processes": local.in_subprocesses,
}
_SCHEDULERS = ("dask", "tcp", "tls")
_SLURM = "slurm"

NAMES = (*_LOCAL, "dask://HOST:PORT", _SLURM)
"""What a name may look like."""

_IN_USE: ContextVar[Engine] = ContextVar("engine", default=local.auto)
"""Set by `use_engine` alone: jobs of a cluster are shared by all that one command reads."""


@contextlib.contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Read traces with the engine of this name until the end of the block.

    `auto`, `local` (all in this process), `processes`, the address of a Dask scheduler, or `slurm` with
    options as in `slurm:queue=debug,cores=4`. Raises UsageError for another name, and at the first trace
    InputError where a cluster cannot be reached.
    """
    with _open_engine(name) as engine:
        token = _IN_USE.set(engine)
        try:
            yield
        finally:
            _IN_USE.reset(token)


def _open_engine(name: str) -> contextlib.AbstractContextManager[Engine]:
    if name in _LOCAL:
        return contextlib.nullcontext(_LOCAL[name])
    kind, _, rest = name.partition(":")
    if kind in _SCHEDULERS and rest.startswith("//") and rest != "//":
        from ccl_bench.engine.dask import connect_dask

        return connect_dask(name.replace("dask:", "tcp:", 1))
    if kind == _SLURM:
        from ccl_bench.engine.slurm import start_jobs

        return start_jobs(rest)
    known = f"one of: {', '.join(NAMES)}"
    raise UsageError(f"unknown engine {name!r}", fix=did_you_mean(kind, [*_LOCAL, _SLURM]) or known)


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
