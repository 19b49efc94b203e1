"""How many traces are read at once: as many as there are workers and memory for."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccl_bench.engine import Task, room
from ccl_bench.engine.room import needed_bytes, room_bytes
from ccl_bench.engine.turns import in_turn
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, write_run
from ccl_bench.trace.discovery import TraceFile
from ccl_bench.trace.formats import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINETO = next(form for form in map(formats.load().get, ["kineto"]))


def tasks(folder: Path, sizes: Sequence[int]) -> dict[int, Task]:
    """Return a task for each file of so many bytes of memory."""
    found = {}
    for position, size in enumerate(sizes):
        path = folder / f"rank{position}.json"
        with path.open("wb") as stream:
            stream.truncate(size)
        found[position] = Task(TraceFile(path, path.name, KINETO, position, "file", None, None, size), ())
    return found
