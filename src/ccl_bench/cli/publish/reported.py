"""The command `ccl-bench board import`: rows that others reported elsewhere join a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import counted
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.publish.leaderboard import Database  # noqa: TC001  cyclopts looks it up
from ccl_bench.cli.runner import say
from ccl_bench.leaderboard.errors import check_installed
from ccl_bench.report.console import aligned, show

ABOUT = """\
FILE is the table of AIConfigurator, the rows of CCL-Bench, a result of InferenceX, a result of a serving \
benchmark (vLLM, SGLang, AIPerf, genai-bench, GuideLLM, inference-perf, LLMPerf), or a folder of them. \
Rows appear as "reported elsewhere", with source, date and licence. Repeats of one configuration are one \
row with a spread. Importing a file again adds nothing.

A result of a serving benchmark does not say where it is from: give --source, --licence, --date, and with \
--card what was run.

Exit status: 0; 2 wrong usage; 4 some rows have mistakes, which are named, and the others are imported; \
or a file cannot be read.
"""

_NAMED = 20
"""Mistakes that are printed: a table of the wrong kind has one in every row."""

app = options.app(
    "import", ABOUT, [f"{PROGRAM} board import agg_results/ --to leaderboard-data --date 2026-11-01"]
)


@app.default
def import_(
    files: Annotated[list[str], Parameter(metavar="FILE", help="Files and folders to import.")],
    /,
    *,
    to: Annotated[str, Parameter(metavar="DIR", help="Data directory of the board.")],
    source: Annotated[
        str, Parameter(metavar="NAME", help="Short name of the source, such as lab-2026.")
    ] = "",
    title: Annotated[str, Parameter(metavar="TEXT", help="The source as pages show it.")] = "",
    address: Annotated[str, Parameter(metavar="URL", help="Where the source is published.")] = "",
    licence: Annotated[str, Parameter(metavar="NAME", help="Licence of the rows, such as Apache-2.0.")] = "",
    date: Annotated[str, Parameter(metavar="DATE", help="When they were measured or read.")] = "",
    card: Annotated[str | None, Parameter(metavar="FILE", help="Workload card of benchmark results.")] = None,
    database: Database = None,
) -> int:
    """Import rows."""
    check_installed()
    from ccl_bench.leaderboard.reported.reading import About, read_files
    from ccl_bench.leaderboard.store import open_store

    if "://" in to:
        raise UsageError(
            f"--to {to} is an address",
            fix="give the data directory: rows are imported where the board is kept",
        )
    about = About(source, title, address, licence, date)
    reported, mistakes = read_files([Path(each) for each in files], about, Path(card) if card else None)
    for mistake in mistakes[:_NAMED]:
        say(PROGRAM, f"left out: {mistake}")
    if len(mistakes) > _NAMED:
        say(PROGRAM, f"left out: {counted(len(mistakes) - _NAMED, 'row')} more with mistakes")
    store = open_store(to, database, create=True)
    rows = []
    for each in reported:
        added = store.add_reported(each)
        rows.append((each.source.name, f"{added:,}", f"{each.rows.height - added:,}", each.source.title))
    show(aligned(("SOURCE", "NEW", "ALREADY THERE", "TITLE"), rows, right=(1, 2)))
    return InputError.exit_status if mistakes else 0
