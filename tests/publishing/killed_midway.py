"""Do one thing to a leaderboard, and be killed in the middle of it; run as DATA DATABASE ACTION RUN POINT.

A point is a function and the side of its first call on which the process ends.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.publishing import ingest, moderation
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.tokens import Caller, Role
from ccl_bench.leaderboard.store import database, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.leaderboard.store import Store

_STORE = "ccl_bench.leaderboard.store.store"
_PUBLICATIONS = "ccl_bench.leaderboard.publishing.publications"
POINTS = {
    "the history was written": (_STORE, "write_history", "after"),
    "the rows were written": (_STORE, "_write", "after"),
    "the log was written": (_STORE, "log_changes", "after"),
    "the run was indexed": ("ccl_bench.leaderboard.publishing.ingest", "register_publication", "before"),
    "the run was listed": ("ccl_bench.leaderboard.publishing.moderation", "register_publication", "before"),
    "the job was queued": (f"{_PUBLICATIONS}.queue", "enqueue", "after"),
    "a table was created": ("alembic.op", "create_table", "after"),
    "rows were changed": ("alembic.op", "execute", "after"),
    "a column was dropped": ("alembic.op", "drop_column", "after"),
    "a table was dropped": ("alembic.op", "drop_table", "after"),
}
"""What has just happened → the function there, and the side of its call."""


def interrupt(point: str, act: Callable[[], object], replace: Callable[[object, str, Any], object]) -> None:
    """Have `act` called at a point, the first time that it is reached."""
    module, name, side = POINTS[point]
    owner = _module(module)
    whole, waiting = getattr(owner, name), [act]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        result = whole(*arguments, **named) if side == "after" else None
        if waiting:
            waiting.pop()()
        return whole(*arguments, **named) if side == "before" else result

    replace(owner, name, interrupted)


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(parent), attribute)


def publish(store: Store, archive: Path, **settings: Any) -> str:
    """Ingest an archive as ada, and return its run."""
    ada = Caller("ada", Role.SUBMITTER)
    with ingest.upload_folder(store.data) as folder:
        return ingest.ingest_archive(
            store, Settings(**settings), ada, archive, folder, lambda _size: None
        ).run


def act(store: Store, action: str, what: str) -> None:
    """Publish an archive, withdraw or approve a run, or take tables back to a revision."""
    if action == "publish":
        publish(store, Path(what))
    elif action == "downgrade":
        database.downgrade(store.engine, what)
    elif action == "withdraw":
        moderation.withdraw(store, Caller("ada", Role.SUBMITTER), what)
    else:
        moderation.approve(store, Settings(), Caller("mae", Role.MAINTAINER), what)


def main() -> None:
    """Do it until the point, which opening the store may reach: it migrates the tables."""
    data, address, action, what, point = sys.argv[1:]
    interrupt(point, lambda: os.kill(os.getpid(), signal.SIGKILL), setattr)
    act(open_store(data, address or None), action, what)


if __name__ == "__main__":
    main()
