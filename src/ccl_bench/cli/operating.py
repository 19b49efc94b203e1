"""The commands `ccl-bench token` and `ccl-bench worker`: for those who run a leaderboard."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.serving import Data, Database, opened

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.leaderboard.publishing.tokens import TokenRow

ABOUT_TOKENS = """Make a token for somebody who publishes, and print it: it is told once, only its hash stays.

DATA is the directory of the leaderboard; it is made where it is missing.

Exit status: 0; 2 wrong usage; 4 there is no such token, or the directory or database cannot be used.
"""

ABOUT_WORKER = """Recompute published runs from their traces, until it is stopped with Ctrl-C.

ccl-bench serve runs one by itself. More of them work side by side, also on other machines with the same \
directory and database.

Exit status: 0 stopped; 2 wrong usage; 4 the directory or database cannot be used.
"""


def making_tokens(program: str) -> App:
    """Return the command that makes tokens."""
    examples = [f"{program} token leaderboard-data ada", f"{program} token leaderboard-data --list"]
    made = options.app("token", ABOUT_TOKENS, examples)
    made.default(token)
    return made


def working(program: str) -> App:
    """Return the command that works."""
    made = options.app("worker", ABOUT_WORKER, [f"{program} worker leaderboard-data"])
    made.default(worker)
    return made


def token(
    data: Data,
    submitter: Annotated[str | None, Parameter(metavar="", help="Name of whoever gets the token.")] = None,
    /,
    *,
    role: Annotated[
        Literal["submitter", "maintainer", "admin"],
        Parameter(help="What they may do: publish; also approve and withdraw; also make tokens."),
    ] = "submitter",
    days: Annotated[
        int | None, Parameter(metavar="N", help="How long it is good for; for ever unless given.")
    ] = None,
    listing: Annotated[bool, Parameter(name="--list", help="Show the tokens that there are.")] = False,
    revoke: Annotated[str | None, Parameter(metavar="ID", help="Make a token worthless.")] = None,
    database: Database = None,
) -> int:
    """Make, list or revoke tokens."""
    from ccl_bench.leaderboard import check_installed

    check_installed()
    from ccl_bench.leaderboard.publishing import audit, tokens
    from ccl_bench.leaderboard.publishing.desk import OPERATOR
    from ccl_bench.leaderboard.store import open_store

    if [submitter is not None, listing, revoke is not None].count(True) != 1:
        raise UsageError("it takes a name, --list or --revoke", fix="give one of them")
    if days is not None and days < 1:
        raise UsageError(f"--days {days} is in the past", fix="give 1 or more")
    store = open_store(data, database, create=submitter is not None)
    if submitter is not None:
        made = tokens.make_token(store.engine, submitter, tokens.Role(role), days=days)
        audit.note(store.data, "token-made", submitter=submitter, role=role, by=OPERATOR.submitter)
        sys.stdout.write(f"{made}\n")
    elif revoke is not None:
        tokens.revoke(store.engine, revoke)
        audit.note(store.data, "token-revoked", token=revoke, by=OPERATOR.submitter)
    else:
        _show(tokens.listed(store.engine))
    return 0


def _show(found: list[TokenRow]) -> None:
    from ccl_bench.report.console import aligned, show

    rows = [
        (
            row.id,
            row.submitter,
            row.role.value,
            row.created_at[:10],
            (row.expires_at or "never")[:10],
            _standing(row),
        )
        for row in found
    ]
    show(aligned(("ID", "SUBMITTER", "ROLE", "MADE", "EXPIRES", ""), rows))


def _standing(row: TokenRow) -> str:
    return f"revoked {row.revoked_at[:10]}" if row.revoked_at else ""


def worker(
    data: Data,
    /,
    *,
    database: Database = None,
    until_empty: Annotated[bool, Parameter(help="Stop when there is nothing to do.")] = False,
) -> int:
    """Recompute runs."""
    from ccl_bench.cli.runner import say
    from ccl_bench.leaderboard import check_installed

    check_installed()
    from ccl_bench.leaderboard.publishing.worker import Worker
    from ccl_bench.report.formatting import counted

    done = Worker(opened(data, database)).run(until_empty=until_empty)
    say(PROGRAM, f"{counted(done, 'run')} recomputed")
    return 0
