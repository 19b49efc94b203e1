"""A board whose folder cannot be written: its index and locks are in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from ccl_bench.leaderboard.publishing.settings import FILE as SETTINGS
from ccl_bench.leaderboard.store.store import FOLDER
from ccl_bench.storage import cache_directory, private_folder


def is_read_only(data: str | Path) -> bool:
    """Whether a folder exists in which this process cannot write."""
    folder = Path(data).expanduser()
    return folder.is_dir() and not os.access(folder, os.W_OK)


def writable_view(data: str | Path) -> Path:
    """Return a folder of the cache that shows the runs and settings of a folder that cannot be written.

    The same folder always has the same view, so that its index is made once.
    """
    folder = Path(data).expanduser().resolve()
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    view = private_folder(cache_directory() / "boards" / name)
    for part in (FOLDER, SETTINGS):
        with contextlib.suppress(FileExistsError):
            (view / part).symlink_to(folder / part)
    return view
