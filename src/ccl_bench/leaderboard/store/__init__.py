"""The results store: bundles on disk, an index of them in SQLite or PostgreSQL, and queries to it."""

from __future__ import annotations

from pathlib import Path

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import HistoryEvent, State, new_event
from ccl_bench.leaderboard.store.database import locked, migrate, open_engine, writing
from ccl_bench.leaderboard.store.store import Store
from ccl_bench.leaderboard.store.tables import METADATA
from ccl_bench.storage import private_folder

__all__ = ["METADATA", "HistoryEvent", "State", "Store", "locked", "new_event", "open_store", "writing"]


def open_store(data: str | Path, database: str | None = None, *, create: bool = False) -> Store:
    """Return the store of a data directory, with its tables migrated to this version.

    The index is `index.sqlite` in the directory, or the database at an address such as
    `postgresql+psycopg://user@host/name`. With `create` the directory need not exist.
    """
    folder = Path(data).expanduser().resolve()
    if create:
        private_folder(folder)
    if not folder.is_dir():
        raise InputError(
            "is not a directory", where=str(data), fix="publish a run: ccl-bench publish RUN --to DIR"
        )
    engine = open_engine(folder, database)
    with locked(folder):
        migrate(engine)
    return Store(folder, engine)
