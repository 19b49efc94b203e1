"""The command `ccl-bench board review`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import InputError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar
from ccl_bench.leaderboard.errors import check_installed

ABOUT = """\
Each bundle that was added or changed is checked as a server checks an upload: hash, card, results, history, \
signature. A published bundle may not be edited or removed; its history may grow. The comment shows the new \
rows with their ranks, the rows whose ranks change, and what is refused. The key of a signature is \
keys/NAME.pub of the earlier state. Nothing is downloaded.

Exit status: 0; 1 a recomputed number differs; 2 wrong usage; 4 a bundle is refused, or the board or the \
traces cannot be used.
"""

app = options.app(
    "review",
    ABOUT,
    [
        f"{PROGRAM} board review board --since main",
        f"{PROGRAM} board review board --since main -o comment.md",
    ],
)


@app.default
def review(
    board: Annotated[str, Parameter(metavar="", help="Folder of the board, with the merge request.")],
    /,
    *,
    since: Annotated[
        str,
        Parameter(metavar="STATE", help="The board without it: a git revision, or a folder."),
    ],
    traces: Annotated[
        str | None,
        Parameter(
            metavar="DIR",
            help="Recompute new rows whose files are here, directly or in a folder of the run's name.",
        ),
    ] = None,
    output: Annotated[
        str | None, Parameter(alias="-o", metavar="FILE", help="File of the comment, in Markdown.")
    ] = None,
    force: options.Force = False,
) -> int:
    """Review a merge request to a board."""
    check_installed()
    from ccl_bench.leaderboard.federation.changes import board_changes
    from ccl_bench.leaderboard.federation.comment import review_comment
    from ccl_bench.leaderboard.federation.review import review_board

    target = options.file_to_write(output, force=force) if output else None
    if traces is not None and not Path(traces).is_dir():
        raise InputError("is not a folder", where=traces, fix="name the folder with the files of the runs")
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as scratch:
        changes = board_changes(Path(board), since, Path(scratch))
        with progress_bar(1, "reviewing runs") as progress:
            reviewed = review_board(changes, traces=Path(traces) if traces else None, progress=progress)
    comment = review_comment(reviewed)
    if target:
        target.write_text(comment, encoding="utf-8")
        options.show_written(target)
    else:
        sys.stdout.write(comment)
    return InputError.exit_status if reviewed.is_refused else int(reviewed.differs)
