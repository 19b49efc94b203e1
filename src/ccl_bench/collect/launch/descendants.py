"""The processes that a process started, found in /proc; launchers put workers into their own sessions."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = Path("/proc")


def of_process(pid: int) -> list[int]:
    """Return the processes below `pid`, parents before children."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold spaces and parentheses itself.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            children[int(fields[1])].append(int(stat.parent.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children[pending.pop(0)]
        found += below
        pending += below
    return found


def end(pids: Iterable[int]) -> None:
    """Kill processes; those that are gone already are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
