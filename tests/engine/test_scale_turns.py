"""How many traces are read at once: as many as there are workers and memory for."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ccl_bench.engine import Task
from ccl_bench.engine.pools import run_bounded
from ccl_bench.run.trace_tables import TraceTables
from ccl_bench.trace.formats import TraceFile, load
from ccl_bench.trace.memory import needed_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MEGA = 1_000_000


def tasks(folder: Path, sizes: Sequence[int]) -> dict[int, Task]:
    """Return a task for each Kineto trace of so many megabytes; it takes as much memory."""
    form = load().get("kineto")
    found = {}
    for position, megabytes in enumerate(sizes):
        path = folder / f"rank{position}.json"
        with path.open("wb") as stream:
            stream.truncate(megabytes * MEGA)
        trace = TraceFile(path, path.name, form, position, "file", None, None, megabytes * MEGA)
        assert needed_bytes(trace) == megabytes * MEGA
        found[position] = Task(trace, ())
    return found


class Reading:
    """Reads nothing, and keeps the most bytes and traces that were in hand at once.

    The first traces stay in hand until as many as expected are.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.in_hand: list[int] = []
        self.most_traces = self.most_bytes = 0
        self.changing = threading.Condition()

    def __call__(self, task: Task) -> TraceTables:
        """Read a trace."""
        with self.changing:
            self.in_hand.append(task.trace.size)
            self.most_traces = max(self.most_traces, len(self.in_hand))
            self.most_bytes = max(self.most_bytes, sum(self.in_hand))
            self.changing.notify_all()
            assert self.changing.wait_for(lambda: self.most_traces >= self.expected, timeout=300)
        time.sleep(0.02)  # in which one too many would be in hand as well
        with self.changing:
            self.in_hand.remove(task.trace.size)
        return TraceTables(task.trace)


@pytest.mark.parametrize(
    ("sizes", "workers", "room", "traces", "megabytes"),
    [
        ([10] * 6, 2, 1000, 2, 20),  # bounded by workers
        ([10] * 6, 6, 35, 3, 30),  # bounded by memory
        ([10] * 3, 6, 9, 1, 10),  # one at least, however little there is
        ([10, 50, 10], 6, 40, 1, 50),  # the large one alone, and nothing goes before its turn
    ],
)
def test_traces_in_hand_stay_within_workers_and_memory(
    sizes: list[int], workers: int, room: int, traces: int, megabytes: int, tmp_path: Path
) -> None:
    read = Reading(traces)
    with ThreadPoolExecutor(6) as pool:
        found = dict(
            run_bounded(
                tasks(tmp_path, sizes),
                lambda task: pool.submit(read, task),
                workers=workers,
                room=room * MEGA,
            )
        )

    assert {position: each.trace.rank for position, each in found.items()} == dict(
        enumerate(range(len(sizes)))
    )
    assert (read.most_traces, read.most_bytes) == (traces, megabytes * MEGA)
