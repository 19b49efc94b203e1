"""Where uploads are received: a folder for each, removed at its end, or after the death of its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.publishing.settling import UPLOADS
from ccl_bench.leaderboard.store import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "incoming-"
_ALIVE = ".alive"
"""File whose lock is held as long as the process lives."""


@contextlib.contextmanager
def incoming(data: Path) -> Iterator[Path]:
    """Give an empty folder on the file system of the data directory."""
    uploads = data / UPLOADS
    uploads.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        with locked(uploads):
            folder = Path(tempfile.mkdtemp(dir=uploads, prefix=_PREFIX))
            alive = stack.enter_context((folder / _ALIVE).open("wb"))
            fcntl.flock(alive, fcntl.LOCK_EX)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep(data: Path) -> int:
    """Remove the folders of uploads whose process is dead, and return how many there were."""
    uploads = data / UPLOADS
    uploads.mkdir(exist_ok=True)
    with locked(uploads):
        dead = [folder for folder in uploads.glob(f"{_PREFIX}*") if _is_dead(folder)]
        for folder in dead:
            shutil.rmtree(folder, ignore_errors=True)
    return len(dead)


def _is_dead(folder: Path) -> bool:
    try:
        handle = os.open(folder / _ALIVE, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
