"""The commands that change published runs: `publish`, `board withdraw` and `board approve`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.base.text import plain
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.publish.leaderboard import Database  # noqa: TC001  cyclopts looks it up
from ccl_bench.cli.runner import progress_bar, say
from ccl_bench.leaderboard.errors import check_installed
from ccl_bench.report.console import aligned, show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.leaderboard.bundle.upload import Upload
    from ccl_bench.leaderboard.publishing.client import Destination, LeaderboardClient
    from ccl_bench.leaderboard.publishing.models import Receipt
    from ccl_bench.leaderboard.publishing.moderation import LocalAdmin

ABOUT_PUBLISH = """\
If --to is a directory, ccl-bench serve and ccl-bench board site make a leaderboard from it. If it is an \
address, the run is sent there with the token in CCL_BENCH_TOKEN. Traces stay where they are unless you give \
--traces: with traces, the leaderboard recomputes every number and marks the run verified.

Publishing the same run again changes nothing; a new measurement of it replaces the old one.

Exit status: 0; 2 wrong usage; 4 the run cannot be read, holds a secret, or was refused.
"""

INCLUDE = "include"

To = Annotated[str, Parameter(metavar="PLACE", help="Address of a leaderboard, or a directory.")]
TokenFile = Annotated[
    str | None, Parameter(metavar="FILE", help="File with the token, in place of CCL_BENCH_TOKEN.")
]
Sign = Annotated[
    str | None,
    Parameter(metavar="FILE", help="Sign the run with this secret key, of ccl-bench sign new."),
]
TraceUrl = Annotated[
    str | None, Parameter(metavar="URL", help="Public address of the traces, if they have one already.")
]


_RUN = "examples/runs/llama-tiny-fsdp2-tp2-gloo"

publish_app = options.app(
    "publish",
    ABOUT_PUBLISH,
    [
        f"{PROGRAM} publish {_RUN} --to leaderboard-data",
        f"{PROGRAM} publish {_RUN} --to https://leaderboard.example --traces include --dry-run",
    ],
)


@publish_app.default
def publish(
    run: Annotated[str, Parameter(metavar="", help="Run directory, trace file or URL.")],
    /,
    *,
    to: To,
    traces: Annotated[
        str | None,
        Parameter(
            metavar="WHERE",
            help="Publish the traces too: 'include' sends them along, an address such as s3://bucket/folder "
            "stores them there.",
        ),
    ] = None,
    trace_url: TraceUrl = None,
    dry_run: Annotated[
        bool,
        Parameter(
            help="Only list what would leave this machine, and what it discloses about people and machines."
        ),
    ] = False,
    sign: Sign = None,
    token_file: TokenFile = None,
    workload_card: options.Card = None,
    database: Database = None,
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    steps: options.StepOptions = options.EVERY_STEP,
) -> int:
    """Publish a run."""
    check_installed()
    from ccl_bench.leaderboard.bundle.origin import read_secret_key, sign_bundle
    from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload, preview

    destination = _destination(to, token_file, database)
    storage = None if traces == INCLUDE else traces
    if storage and trace_url:
        raise UsageError("--traces and --trace-url contradict each other", fix="give one of them")
    if storage is not None and "://" not in storage:
        raise UsageError(
            f"--traces {storage} is not an address", fix=f"give {INCLUDE}, or s3://bucket/folder"
        )
    request = UploadRequest(
        run,
        workload_card,
        with_traces=traces == INCLUDE,
        storage=storage,
        trace_url=trace_url,
        metrics=destination.metrics,
        jobs=jobs,
        use_cache=not no_cache,
        choice=steps.choice,
    )
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as scratch:
        with progress_bar(1) as progress:
            upload = prepare_upload(request, Path(scratch), progress=progress)
        for name in upload.redacted:
            say(PROGRAM, f"{name}: published without environment, output, host and other processes")
        if sign is not None:
            secret = read_secret_key(Path(sign).expanduser())
            sign_bundle(upload.bundle.folder, secret, destination.submitter(upload))
        if dry_run:
            show(preview(upload))
        else:
            _send(upload, destination, Path(scratch))
    return 0


def _destination(to: str, token_file: str | None, database: str | None) -> Destination:
    from ccl_bench.leaderboard.publishing.client import (
        DirectoryDestination,
        LeaderboardClient,
        ServerDestination,
        read_token,
    )

    if "://" in to:
        if database:
            raise UsageError("--database needs a directory, but --to names a server", fix="leave it out")
        return ServerDestination(LeaderboardClient(to, read_token(token_file)))
    if Path(to).exists() and not Path(to).is_dir():
        raise UsageError(f"{to} is not a directory", fix="give a directory, or the address of a leaderboard")
    return DirectoryDestination(Path(to), database)


def _send(upload: Upload, destination: Destination, scratch: Path) -> None:
    """Store the traces of a run, send the rest, and print what became of it."""
    from ccl_bench.leaderboard.bundle.upload import disclosure_summaries
    from ccl_bench.leaderboard.publishing.client import upload_traces

    if upload.run_files and not upload.sent:
        with progress_bar(len(upload.run_files), "storing traces") as progress:
            upload_traces(upload, progress)
    with progress_bar(1, "sending") as progress:
        published = destination.take(upload, scratch, progress)
    words = published.state.replace("_", "-")
    say(PROGRAM, f"published, {words}" if published.is_new else f"already published, {words}")
    replaced = (f"it replaces {run[:12]}" for run in published.replaced)
    for remark in (*replaced, *published.remarks, *disclosure_summaries(upload)):
        say(PROGRAM, remark)
    sys.stdout.write(f"{plain(published.place)}\n")


ABOUT_WITHDRAW = """\
A submitter withdraws their own runs, a maintainer any run; the token is read from CCL_BENCH_TOKEN. \
A data directory needs no token.

Exit status: 0; 2 wrong usage; 4 there is no such run, or the leaderboard refuses.
"""

ABOUT_APPROVE = """It needs the token of a maintainer in CCL_BENCH_TOKEN; a data directory needs none.

Exit status: 0; 2 wrong usage; 4 there is no such run, or the leaderboard refuses.
"""

_ID = re.compile(r"[0-9a-f]{64}")
_EXAMPLE = "0123456789abcdef" * 4

At = Annotated[str, Parameter(metavar="PLACE", help="Address of the leaderboard, or its data directory.")]
Note = Annotated[str, Parameter(metavar="TEXT", help="Reason, shown in the history of the run.")]


withdraw_app = options.app(
    "withdraw", ABOUT_WITHDRAW, [f"{PROGRAM} board withdraw {_EXAMPLE} --at leaderboard-data"]
)
approve_app = options.app(
    "approve", ABOUT_APPROVE, [f"{PROGRAM} board approve --at https://leaderboard.example"]
)


@withdraw_app.default
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
    _show_receipts([_open_leaderboard(at, token_file, database).withdraw(_run_id(run), note)])
    return 0


@approve_app.default
def approve(
    run: Annotated[
        str | None,
        Parameter(metavar="", help="Identifier of the run; without it, all runs that wait are listed."),
    ] = None,
    /,
    *,
    at: At,
    note: Note = "",
    token_file: TokenFile = None,
    database: Database = None,
) -> int:
    """Approve a run, or list those that wait."""

    board = _open_leaderboard(at, token_file, database)
    receipts = board.waiting() if run is None else [board.approve(_run_id(run), note)]
    if receipts:
        _show_receipts(receipts)
    else:
        say(PROGRAM, "no run waits for approval")
    return 0


def _open_leaderboard(
    at: str, token_file: str | None, database: str | None
) -> LeaderboardClient | LocalAdmin:

    check_installed()
    if "://" in at:
        from ccl_bench.leaderboard.publishing.client import LeaderboardClient, read_token

        return LeaderboardClient(at, read_token(token_file))
    from ccl_bench.cli.publish.leaderboard import open_current_store
    from ccl_bench.leaderboard.publishing.moderation import LocalAdmin

    return LocalAdmin(open_current_store(at, database))


def _run_id(run: str) -> str:
    """Return an identifier, also if the address of the page is given."""
    match = _ID.search(run)
    if match is None:
        raise UsageError(
            f"{run} is not an identifier of a run", fix="take the 64 digits from the address of its page"
        )
    return match[0]


def _show_receipts(receipts: Iterable[Receipt]) -> None:

    rows = [(each.id, each.state, each.verification.state, each.submitter, each.name) for each in receipts]
    show(aligned(("RUN", "STATE", "RECOMPUTED", "SUBMITTER", "NAME"), rows))
