"""The command `ccl-bench serve`: the leaderboard as a web server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.leaderboard.store import Store

ABOUT = """Serve published runs as a leaderboard, until it is stopped with Ctrl-C.

DATA is a directory that ccl-bench publish has put runs into. What is added later is shown at once.

Exit status: 0 stopped; 2 wrong usage; 4 the directory or database cannot be used.
"""

Data = Annotated[str, Parameter(metavar="", help="Directory with the published runs.")]
Database = Annotated[
    str | None,
    Parameter(
        metavar="URL",
        help="Database of the index, such as postgresql://user@host/name; SQLite in DATA by default.",
    ),
]


def app(program: str) -> App:
    """Return the command."""
    made = options.app("serve", ABOUT, [f"{program} serve leaderboard-data --port 8000"])
    made.default(serve)
    return made


def serve(
    data: Data,
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port; 0 for any that is free.")] = 8000,
    database: Database = None,
    root_path: Annotated[
        str, Parameter(metavar="PATH", help="Path below which a proxy serves it, such as /bench.")
    ] = "",
    workers: Annotated[
        int, Parameter(metavar="N", help="Processes beside it that recompute runs from their traces.")
    ] = 1,
) -> int:
    """Serve the leaderboard."""
    from ccl_bench.leaderboard import check_installed

    check_installed()
    from ccl_bench.leaderboard.publishing.beside import workers_beside
    from ccl_bench.leaderboard.publishing.settings import settings_of
    from ccl_bench.leaderboard.publishing.settling import settle_all
    from ccl_bench.leaderboard.web.server import listening, run

    if workers < 0:
        raise UsageError(f"--workers {workers} is no number of processes", fix="give 0 or more")
    store = opened(data, database)
    settle_all(store, settings_of(store.data))
    with listening(host, port) as (listener, address), workers_beside(store.data, database, workers):
        sys.stdout.write(f"{address}{root_path.rstrip('/')}/\n")
        sys.stdout.flush()
        run(store, listener, root_path=root_path.rstrip("/"))
    return 0


def opened(data: str, database: str | None) -> Store:
    """Return the store with its index up to date, and tell which runs cannot be shown."""
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.leaderboard.store import open_store

    store = open_store(data, database)
    with progress_bar(1, "reading published runs") as progress:
        store.catch_up(told=progress)
    tell_refused(store)
    return store


def tell_refused(store: Store) -> None:
    """Tell on stderr which bundles were not taken into the index, and why."""
    from ccl_bench.cli.runner import say

    for error in store.refused.values():
        say(PROGRAM, f"left out: {error}")
