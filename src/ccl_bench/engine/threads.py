"""Reduce traces in threads of this process, which stop reading as soon as nobody wants the rest."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ccl_bench import analysis
from ccl_bench.base.lazy_polars import pl
from ccl_bench.engine.reduction import reduced
from ccl_bench.engine.room import room_bytes
from ccl_bench.engine.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from ccl_bench.engine.reduction import Answers, Task
    from ccl_bench.run.trace_tables import Reduced


def in_threads(tasks: Sequence[Task], workers: int) -> Answers:
    """Yield each task's number and what it came to, from at most `workers` threads at a time."""
    analysis.load()
    _ = pl.DataFrame()  # polars is imported at first use, which two threads must not come to at once
    with _pool(workers) as submit:
        yield from in_turn(dict(enumerate(tasks)), submit, workers=workers, room=room_bytes())


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Callable[[Task], Future[Reduced]]]:
    """Give what submits tasks to threads; where the block is left early, those at work are interrupted."""
    at_work: set[int] = set()
    changing = threading.Lock()

    def reduce_there(task: Task) -> Reduced:
        with changing:
            at_work.add(threading.get_ident())
        try:
            return reduced(task)
        finally:
            with changing:
                at_work.remove(threading.get_ident())

    with ThreadPoolExecutor(workers) as pool:
        try:
            yield lambda task: pool.submit(reduce_there, task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with changing:
                for thread in at_work:
                    _interrupt(thread)
            raise


def _interrupt(thread: int) -> None:
    """Raise KeyboardInterrupt in another thread, which unwinds as at Ctrl-C: what it opened is tidied up."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
