"""Which engine a name means, and which one is in use."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.engine import local
from ccl_bench.engine.together import Together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.engine.local import Engine, Progress
    from ccl_bench.engine.reduction import Answers, Task
    from ccl_bench.engine.together import Tables
    from ccl_bench.run.trace_tables import Reduced

_HERE: dict[str, Engine] = {"auto": local.as_pays, "local": local.here, "processes": local.beside}
_SCHEDULERS = ("dask", "tcp", "tls")
_SLURM = "slurm"

NAMES = (*_HERE, "dask://HOST:PORT", _SLURM)
"""What a name may look like."""

_IN_USE: ContextVar[Engine] = ContextVar("engine", default=local.as_pays)
"""Set by `used` alone: jobs of a cluster are shared by all that one command reads."""


@contextlib.contextmanager
def used(name: str) -> Iterator[None]:
    """Read traces with the engine of this name until the end of the block.

    `auto`, `local` (all in this process), `processes`, the address of a Dask scheduler, or `slurm` with
    options as in `slurm:queue=debug,cores=4`. Raises UsageError for another name, and at the first trace
    InputError where a cluster cannot be reached.
    """
    with _opened(name) as engine:
        token = _IN_USE.set(engine)
        try:
            yield
        finally:
            _IN_USE.reset(token)


def _opened(name: str) -> contextlib.AbstractContextManager[Engine]:
    if name in _HERE:
        return contextlib.nullcontext(_HERE[name])
    kind, _, rest = name.partition(":")
    if kind in _SCHEDULERS and rest.startswith("//") and rest != "//":
        from ccl_bench.engine.cluster import connected

        return connected(name.replace("dask:", "tcp:", 1))
    if kind == _SLURM:
        from ccl_bench.engine.slurm import started

        return started(rest)
    known = f"one of: {', '.join(NAMES)}"
    raise UsageError(f"unknown engine {name!r}", fix=did_you_mean(kind, [*_HERE, _SLURM]) or known)


def results(tasks: Sequence[Task], *, jobs: int | None = None, progress: Progress | None = None) -> Answers:
    """Yield each task's number and what it came to, as they are done, by the engine in use.

    `jobs` bounds the number of workers. `progress` is called with (done, total) after each trace.
    """
    with contextlib.closing(_IN_USE.get()(tasks, jobs)) as answers:
        for done, found in enumerate(answers, start=1):
            if progress:
                progress(done, len(tasks))
            yield found


def run(tasks: Sequence[Task], *, jobs: int | None = None, progress: Progress | None = None) -> list[Reduced]:
    """Return what each task came to, in the order of the tasks."""
    found = dict(results(tasks, jobs=jobs, progress=progress))
    return [found[position] for position in range(len(tasks))]


def read_together(
    tasks: Sequence[Task], names: Sequence[str], *, jobs: int | None = None, progress: Progress | None = None
) -> tuple[list[Reduced], Tables]:
    """Return what each task came to, without its tables, and the named tables of all tasks as one each."""
    together = Together(names, len(tasks))
    found: dict[int, Reduced] = {}
    with contextlib.closing(results(tasks, jobs=jobs, progress=progress)) as answers:
        for position, trace in answers:
            together.take(position, trace)
            found[position] = trace
    return [found[position] for position in range(len(tasks))], together.tables()
