"""The backup of a board in use: first the database, then the files that it lists.

Bundles that are accepted in between are only in the files, where the index of the copy finds them.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from typing import TYPE_CHECKING, cast

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import HISTORY, SENT
from ccl_bench.leaderboard.publishing import settings
from ccl_bench.leaderboard.publishing.publications import TRACES_FOLDER
from ccl_bench.leaderboard.store import locked
from ccl_bench.leaderboard.store.database import FILE
from ccl_bench.leaderboard.store.store import REPORTED
from ccl_bench.storage import make_private, private_folder

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.store import Store


def write_backup(store: Store, target: Path, *, progress: Progress | None = None) -> int:
    """Copy a board into a new directory, and return the number of its runs.

    The index is copied if it is SQLite; other databases have their own backup programs. `progress` is
    called with the number of copied runs and their total.
    """
    try:
        private_folder(target.parent)
        target.mkdir()
    except FileExistsError as error:
        raise InputError("already exists", where=str(target), fix="choose another directory") from error
    make_private(target)
    if store.engine.dialect.name == "sqlite":
        # The copy is of one state of the index, while others write.
        source = store.engine.raw_connection()
        try:
            with contextlib.closing(sqlite3.connect(target / FILE)) as copy:
                cast("sqlite3.Connection", source.driver_connection).backup(copy)
        finally:
            source.close()
    runs = sorted(store.folders())
    for done, run in enumerate(runs, start=1):
        _copy_run(store, run, target)
        if progress:
            progress(done, len(runs))
    with locked(store.data), contextlib.suppress(FileNotFoundError):
        shutil.copytree(store.data / REPORTED, target / REPORTED)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(store.data / settings.FILE, target / settings.FILE)
    make_private(target)
    return len(runs)


def _copy_run(store: Store, run: str, target: Path) -> None:
    """Copy a consistent state of a bundle and the files of its run; skip a removed one."""
    folder, copy = store.folder / run, target / store.folder.name / run
    with locked(store.data):
        if not folder.exists():
            return
        copy.mkdir(parents=True)
        for name in (*SENT, HISTORY):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(folder / name, copy / name)
    traces = store.data / TRACES_FOLDER / run
    if traces.is_dir():
        shutil.copytree(traces, target / TRACES_FOLDER / run)
