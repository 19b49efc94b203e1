"""Read traces on the workers of a Dask cluster: they read the files, and only small tables travel."""

from __future__ import annotations

import contextlib
import platform
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.extras import require
from ccl_bench.base.lazy_imports import pl
from ccl_bench.engine.pools import abandoned_trace
from ccl_bench.engine.read_trace import Task, TraceStream, read_trace
from ccl_bench.run.trace_tables import TraceTables
from ccl_bench.storage import is_remote
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distributed import Client

    from ccl_bench.engine.read_trace import Engine

    WithoutWorkers = Callable[[float], None]
    """Called again and again with how long there has been no worker, s; raises when that is too long."""

CONNECT_S = 10.0
"""Time in which a scheduler must answer, s."""

PATIENCE_S = 60.0
"""Time for which a cluster may have no worker before it is given up, s."""

_TALKATIVE = ("distributed", "tornado.application")
_LOOK_S = 0.05
_SAME_FILES = "mount the file system of the run on the workers, or name the run by its URL"


@contextlib.contextmanager
def connect_dask(address: str) -> Iterator[Engine]:
    """Give the engine that uses the cluster of the scheduler at `address`; it connects at the first trace."""

    def give_up(waited_s: float) -> None:
        if waited_s > PATIENCE_S:
            message = f"the cluster has had no worker for {PATIENCE_S:.0f} s"
            fix = f"start some: dask worker {address} --nthreads 1"
            raise InputError(message, where=address, fix=fix)

    with contextlib.ExitStack() as stack:
        client = cache(lambda: stack.enter_context(_client(address)))
        yield lambda tasks, _jobs: read_on_cluster(client(), tasks, give_up)


@contextlib.contextmanager
def _client(address: str) -> Iterator[Client]:
    distributed = require("distributed", "cluster")
    with silence_dask():
        try:
            client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False, name="ccl-bench")
        except (OSError, ValueError, RuntimeError) as error:
            fix = "check the address, that the scheduler runs, and that it has the same version of Dask"
            message = f"no Dask scheduler answers within {CONNECT_S:.0f} s"
            raise InputError(message, where=address, fix=fix) from error
        with client:
            yield client


@contextlib.contextmanager
def silence_dask() -> Iterator[None]:
    """Silence the messages of Dask and what it rests on; this program reports the same itself."""
    import logging

    loggers = {each: each.level for each in map(logging.getLogger, _TALKATIVE)}
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, before in loggers.items():
            logger.setLevel(before)


def read_on_cluster(client: Client, tasks: Sequence[Task], without_workers: WithoutWorkers) -> TraceStream:
    """Yield each task's number and its outcome on a worker.

    The scheduler begins a task again whose worker is lost. One that has lost several workers may
    only have been beside the one at fault: it is begun again alone, and given up when that loses them too.
    """
    suspects: list[int] = []
    for position, result in _submit(client, dict(enumerate(tasks)), without_workers):
        if isinstance(result, TraceTables):
            yield position, result
        else:
            suspects.append(position)
    for position in sorted(suspects):
        alone = _submit(client, {position: tasks[position]}, without_workers)
        for _, result in alone:
            trace = result if isinstance(result, TraceTables) else abandoned_trace(tasks[position], result)
            yield position, trace


def _submit(
    client: Client, tasks: dict[int, Task], without_workers: WithoutWorkers
) -> Iterator[tuple[int, TraceTables | int]]:
    """Yield the outcome of each task, or the number of workers that it lost if the scheduler gave it up.

    At the end nothing of it is left on the cluster.
    """
    distributed = require("distributed", "cluster")
    program = _program()
    futures = {}
    for position, task in tasks.items():
        trace = task.trace
        if not is_remote(trace.path):  # the worker has another working directory
            trace = replace(trace, path=trace.path.absolute())
        futures[client.submit(_read_on_worker, replace(task, trace=trace), program, pure=False)] = position
    try:
        outcomes = distributed.as_completed(futures, loop=client.loop, with_results=True, raise_errors=False)
        for future, result in _as_completed(client, outcomes, without_workers):
            # The fetched result counts, not the status of the future: its worker may be lost since.
            position = futures.pop(future)
            error = result[1] if isinstance(result, tuple) else result
            if isinstance(result, TraceTables):
                yield position, replace(result, trace=tasks[position].trace)
            elif isinstance(error, distributed.scheduler.KilledWorker):
                yield position, 1 + error.allowed_failures
            elif isinstance(error, CancelledError):
                address = str(client.scheduler.address) if client.scheduler else ""
                message = "the scheduler has stopped, or has dropped the work"
                fix = "start the scheduler again, then this command"
                raise InputError(message, where=address, fix=fix)
            elif isinstance(error, ImportError | AttributeError) and "ccl_bench" in str(error):
                raise _other_program(f"a worker cannot load the program: {error}")
            elif isinstance(error, BaseException):
                raise error
            else:
                raise TypeError(f"a worker returned a {type(error).__name__}")
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            client.cancel(list(futures), force=True)  # type: ignore[no-untyped-call]


def _as_completed(
    client: Client, outcomes: Any, without_workers: WithoutWorkers
) -> Iterator[tuple[Any, Any]]:
    """Yield futures with their results as they are done, watching that a worker is there."""
    seen = last_look = time.monotonic()
    while not outcomes.is_empty():
        batch = outcomes.next_batch(block=False)
        yield from batch
        now = time.monotonic()
        if batch:
            seen = now
        elif now - last_look > 1:
            last_look = now
            with contextlib.suppress(OSError):
                if client.scheduler_info(n_workers=1)["workers"]:
                    seen = now
            without_workers(now - seen)
        else:
            time.sleep(_LOOK_S)


def _program() -> dict[str, str]:
    """Return the versions that all processes of one answer must share: those of packages and readers."""
    DERIVED.load()
    readers = {f"reader {form.name}": str(form.revision) for form in formats.load()}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"ccl-bench": __version__, "polars": pl.__version__, "Python": python, **readers}


def _other_program(message: str) -> UsageError:
    return UsageError(message, fix="install the same environment for the client and for the workers")


def _read_on_worker(task: Task, program: dict[str, str]) -> TraceTables:
    """Reduce a trace on a worker, if that is the same program and sees the same file."""
    local_program = _program()
    for name, version in program.items():
        if local_program.get(name) != version:
            worker_version = local_program.get(name, "missing")
            raise _other_program(
                f"{name} is {version} here and {worker_version} on the worker {platform.node()}"
            )
    path = task.trace.path
    if not is_remote(path):
        try:
            size = path.stat().st_size
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"cannot be seen by the worker {platform.node()}: {reason}"
            raise InputError(message, where=str(path), fix=_SAME_FILES) from error
        if size != task.trace.size:
            message = (
                f"has {size} bytes for the worker {platform.node()} and {task.trace.size} for the client"
            )
            raise InputError(message, where=str(path), fix=_SAME_FILES)
    return read_trace(task)
