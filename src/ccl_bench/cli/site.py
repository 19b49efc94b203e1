"""The command `ccl-bench site`: the leaderboard as files for any web host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.serving import Data, Database, opened

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Write published runs as a leaderboard of files, for any web host or to be opened from a disk.

Filters, sorting and columns are done by a script in the page; without one every run can still be read.

Exit status: 0; 2 wrong usage, or the directory is there already; 4 the directory or database cannot be used.
"""


def app(program: str) -> App:
    """Return the command."""
    made = options.app("site", ABOUT, [f"{program} site leaderboard-data -o public"])
    made.default(site)
    return made


def site(
    data: Data,
    /,
    *,
    output: Annotated[str, Parameter(alias="-o", metavar="DIR", help="Directory to write into.")],
    database: Database = None,
    force: Annotated[bool, Parameter(help="Replace a leaderboard that is there already.")] = False,
) -> int:
    """Write the leaderboard."""
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.cli.runner import say
    from ccl_bench.leaderboard import check_installed

    check_installed()
    from ccl_bench.leaderboard.site import write_site
    from ccl_bench.report.console import show
    from ccl_bench.report.formatting import counted

    store = opened(data, database)
    with progress_bar(1, "writing pages") as progress:
        written = write_site(store, Path(output), force=force, told=progress)
    for error in written.left_out:
        say(PROGRAM, f"left out: {error}")
    show(f"{output}/index.html  {counted(written.runs, 'run')}, {counted(written.files, 'file')}")
    return 0
