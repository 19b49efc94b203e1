"""The commands `ccl-bench withdraw` and `ccl-bench approve`: what becomes of published runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.publishing import TokenFile  # noqa: TC001  cyclopts looks it up
from ccl_bench.cli.serving import Database  # noqa: TC001  cyclopts looks it up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cyclopts import App

    from ccl_bench.leaderboard.publishing.client import Leaderboard
    from ccl_bench.leaderboard.publishing.desk import Desk
    from ccl_bench.leaderboard.publishing.models import Receipt

ABOUT_WITHDRAW = """Take a published run back: it keeps its page and its history, and is ranked no more.

A submitter withdraws what is their own, a maintainer anyone's; the token is taken from CCL_BENCH_TOKEN. \
In a data directory it takes none.

Exit status: 0; 2 wrong usage; 4 there is no such run, or the leaderboard refuses.
"""

ABOUT_APPROVE = """List a run that waits in quarantine or was withdrawn; without a run, show those that wait.

It takes the token of a maintainer, from CCL_BENCH_TOKEN; in a data directory none.

Exit status: 0; 2 wrong usage; 4 there is no such run, or the leaderboard refuses.
"""

_ID = re.compile(r"[0-9a-f]{64}")
_EXAMPLE = "0123456789abcdef" * 4

At = Annotated[str, Parameter(metavar="PLACE", help="Address of the leaderboard, or its data directory.")]
Note = Annotated[str, Parameter(metavar="TEXT", help="Why; it is shown in the run's history.")]


def withdrawing(program: str) -> App:
    """Return the command that withdraws."""
    made = options.app("withdraw", ABOUT_WITHDRAW, [f"{program} withdraw {_EXAMPLE} --at leaderboard-data"])
    made.default(withdraw)
    return made


def approving(program: str) -> App:
    """Return the command that approves."""
    made = options.app("approve", ABOUT_APPROVE, [f"{program} approve --at https://leaderboard.example"])
    made.default(approve)
    return made


def withdraw(
    run: Annotated[str, Parameter(metavar="", help="Identifier of the run, as in the address of its page.")],
    /,
    *,
    at: At,
    note: Note = "",
    token_file: TokenFile = None,
    database: Database = None,
) -> int:
    """Withdraw a run."""
    _show([_asked(at, token_file, database).withdraw(_identified(run), note)])
    return 0


def approve(
    run: Annotated[
        str | None, Parameter(metavar="", help="Identifier of the run; all that wait without.")
    ] = None,
    /,
    *,
    at: At,
    note: Note = "",
    token_file: TokenFile = None,
    database: Database = None,
) -> int:
    """Approve a run, or list those that wait."""
    from ccl_bench.cli.runner import say

    asked = _asked(at, token_file, database)
    found = asked.waiting() if run is None else [asked.approve(_identified(run), note)]
    if found:
        _show(found)
    else:
        say(PROGRAM, "no run waits")
    return 0


def _asked(at: str, token_file: str | None, database: str | None) -> Leaderboard | Desk:
    from ccl_bench.leaderboard import check_installed

    check_installed()
    if "://" in at:
        from ccl_bench.leaderboard.publishing.client import Leaderboard, token_from

        return Leaderboard(at, token_from(token_file))
    from ccl_bench.cli.serving import opened
    from ccl_bench.leaderboard.publishing.desk import Desk

    return Desk(opened(at, database))


def _identified(run: str) -> str:
    """Return an identifier, also where the address of the page is given."""
    found = _ID.search(run)
    if found is None:
        raise UsageError(
            f"{run} is no identifier of a run", fix="take the 64 digits from the address of its page"
        )
    return found[0]


def _show(found: Iterable[Receipt]) -> None:
    from ccl_bench.report.console import aligned, show

    rows = [(each.id, each.state, each.verification.state, each.submitter, each.name) for each in found]
    show(aligned(("RUN", "STATE", "RECOMPUTED", "SUBMITTER", "NAME"), rows))
