"""Ways to use one core or two: many ranks by ccl-bench, and a control whose halves share nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def _ranks(files: Sequence[Path], jobs: int) -> Callable[[], object]:
    from ccl_bench import engine
    from ccl_bench.trace.discovery import discover_traces

    traces = [trace for trace in discover_traces(files[0].parent).traces if trace.path in files]
    tasks = [engine.Task(trace, ("steps",), use_cache=False) for trace in traces]

    def load() -> object:
        results = engine.read_traces(tasks, jobs=jobs)
        if len(results) != len(files) or not all(result.tables for result in results):
            raise RuntimeError(f"{len(results)} of {len(files)} ranks were read")
        return results

    return load


def ranks_on_one(files: Sequence[Path]) -> Callable[[], object]:
    """Return ccl-bench's way from the files of many ranks to their steps, in one process."""
    return _ranks(files, 1)


def ranks_on_two(files: Sequence[Path]) -> Callable[[], object]:
    """Return the same with two workers: threads or, without the native reader, processes and their start."""
    return _ranks(files, 2)


def control_on_one(contents: Sequence[bytes]) -> Callable[[], object]:
    """Return `json.loads` of two texts in two processes, one after the other."""
    return _control(contents, at_once=1)


def control_on_two(contents: Sequence[bytes]) -> Callable[[], object]:
    """Return the same with both processes concurrently: the gain of a second core on this machine."""
    return _control(contents, at_once=2)


def _control(contents: Sequence[bytes], *, at_once: int) -> Callable[[], None]:
    def load() -> None:
        running: list[int] = []
        for number, content in enumerate(contents):
            running.append(_parsing(content, number))
            if len(running) == at_once:
                _end(running)
        _end(running)

    return load


def _parsing(content: bytes, number: int) -> int:
    """Start a process that parses `content` on one of the cores of this process."""
    cpus = sorted(os.sched_getaffinity(0))
    if process := os.fork():
        return process
    os.sched_setaffinity(0, {cpus[number % len(cpus)]})
    try:
        json.loads(content)
    except ValueError:
        os._exit(1)
    os._exit(0)


def _end(processes: list[int]) -> None:
    """Wait for processes; RuntimeError if one failed."""
    while processes:
        if os.waitpid(processes.pop(), 0)[1]:
            raise RuntimeError("a process of the control failed")
