"""How many traces are read at once: those whose reading together fits into memory."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from typing import TYPE_CHECKING

from ccl_bench.trace.memory import needed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from ccl_bench.engine.read_trace import Task, TraceStream
    from ccl_bench.run.completeness import TraceTables

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
    """Yield each task's number and what it came to, as soon as it is done.

    Tasks begin in order. At most `workers` are in hand, and what these need stays below `room`
    bytes; a task that needs more than that is worked on alone.
    """
    waiting = [(position, task, needed_bytes(task.trace)) for position, task in tasks.items()][::-1]
    running: dict[Future[TraceTables], tuple[int, int]] = {}
    try:
        while waiting or running:
            taken = sum(needed for _, needed in running.values())
            while waiting and _fits(running, waiting[-1][2], workers, room - taken):
                position, task, needed = waiting.pop()
                running[submit(task)] = position, needed
                taken += needed
            done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: running[each][0]):
                result = future.result()
                yield running.pop(future)[0], result
    except BrokenExecutor as error:
        raise WorkersDied([position for position, _ in running.values()]) from error


def _fits(running: Mapping[Future[TraceTables], object], needed: int, workers: int, left: int) -> bool:
    return not running or (len(running) < workers and needed <= left)
