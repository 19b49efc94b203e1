"""How many traces are read at once: how much memory there is, and how much reading each takes."""

from __future__ import annotations

import contextlib
import tomllib
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.storage import GZIP_MAGIC, remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from ccl_bench.engine.read_trace import Task, TraceStream
    from ccl_bench.run.completeness import TraceTables
    from ccl_bench.trace.format import TraceFile

SHARE = 0.8
"""Part of the available memory that is planned with; the rest is for results and for wrong estimates."""

PROCESS_BYTES = 128 << 20
"""Memory of a worker process before it reads anything."""

_KNOWN_RATIO = 4
"""Least ratio of a compressed trace: the size at its end is cut to 32 bits, and is that of its last part."""
_LIKELY_RATIO = 12
"""Ratio of compressed traces whose end cannot be looked at; real Kineto traces have 10 to 15."""

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_budget_bytes() -> int:
    """Return the memory that traces may take together, bytes."""
    return int(SHARE * min(available_bytes(), *_left_in_groups()))


def available_bytes() -> int:
    """Return what the kernel can hand out without swapping, bytes; a large number where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62


def _left_in_groups() -> Iterator[int]:
    """Yield what the control groups of this process leave it, bytes, and the unlimited in any case."""
    yield 1 << 62
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                yield from _left(_GROUPS / "memory", path, *names)


def _left(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Yield what a group and each one around it has left; files in the page cache can be given up."""
    own = mount / path.lstrip("/")
    for group in (own, *own.parents):
        if not group.is_relative_to(mount):
            return
        with contextlib.suppress(OSError, ValueError):
            used = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield max(0, int((group / limit).read_text()) - used + int(stat.get(reclaimable, 0)))


@cache
def _footprints() -> dict[str, Any]:
    """Return the file that says how much memory formats take for each byte of their files, as measured."""
    return tomllib.loads(resources.files(__package__).joinpath("footprints.toml").read_text(encoding="utf-8"))


def needed_bytes(trace: TraceFile) -> int:
    """Return the memory that reading and reducing a trace is likely to take, bytes."""
    measured, size = _footprints(), inflated_bytes(trace)
    first = measured["memory_per_byte"].get(trace.form.name, measured["memory_per_byte"]["other"])
    further = measured["memory_per_further_byte"].get(trace.form.name, first)
    large = max(0, size - measured["large_bytes"])
    return int(first * (size - large) + further * large)


def inflated_bytes(trace: TraceFile) -> int:
    """Return the size of a trace after decompression, as its end states it, else as is likely, bytes."""
    if remote.is_remote(trace.path):
        return trace.size * (_LIKELY_RATIO if trace.path.suffix == ".gz" else 1)
    with contextlib.suppress(OSError), trace.path.open("rb") as stream:
        if stream.read(2) != GZIP_MAGIC:
            return trace.size
        stream.seek(-4, 2)
        return max(int.from_bytes(stream.read(4), "little"), _KNOWN_RATIO * trace.size)
    return trace.size


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
