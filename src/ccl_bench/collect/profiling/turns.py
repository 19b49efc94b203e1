"""Taking turns on a node: at most so many ranks write at the same time, so that disk and memory keep up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS = 4
"""Ranks of a node that write at once unless told otherwise."""


@contextlib.contextmanager
def turn(local_rank: int, writers: int) -> Iterator[None]:
    """Hold one of a node's places to write; the system gives it back when a process dies.

    Where no place can be held, as with a temporary folder that cannot be written, every rank writes at once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            held = stack.enter_context(_place(local_rank % writers))
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _place(number: int) -> IO[str]:
    """Open the file that stands for a place; it is this user's alone."""
    folder = Path(tempfile.gettempdir()) / f"ccl-bench-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(folder)
    return (folder / str(number)).open("w")
