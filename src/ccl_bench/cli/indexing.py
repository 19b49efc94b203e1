"""The command `ccl-bench index`: makes the index of published runs anew and checks every bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.cli import options
from ccl_bench.cli.serving import Data, Database, tell_refused

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Throw the index of published runs away and make it again from their files, checking each.

The files are the truth: whatever happened to the database, this restores it. A file that was changed after \
it was published is found by its hash.

Exit status: 0; 2 wrong usage; 4 a run cannot be used, or the directory or database cannot.
"""


def app(program: str) -> App:
    """Return the command."""
    made = options.app("index", ABOUT, [f"{program} index leaderboard-data"])
    made.default(index)
    return made


def index(data: Data, /, *, database: Database = None) -> int:
    """Make the index anew."""
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.leaderboard import check_installed

    check_installed()
    from ccl_bench.leaderboard.store import open_store
    from ccl_bench.report.console import show
    from ccl_bench.report.formatting import counted

    store = open_store(data, database)
    with progress_bar(1, "reading published runs") as progress:
        store.rebuild(told=progress)
    tell_refused(store)
    show(f"{counted(store.count, 'run')} in the index")
    return InputError.exit_status if store.refused else 0
