"""The command `ccl-bench publish`: a run onto a leaderboard."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.serving import Database  # noqa: TC001  cyclopts looks it up

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.leaderboard.bundle.parcel import Parcel, Wanted
    from ccl_bench.leaderboard.publishing.sending import Destination

ABOUT = """Publish a run: its card, its results, its report as data, and where they come from.

With --to and a directory, ccl-bench serve and ccl-bench site make a leaderboard from it. With --to and an \
address the run is sent there; the token is taken from CCL_BENCH_TOKEN. Traces stay where they are unless \
--traces says otherwise: with them the leaderboard recomputes every number, and calls the run verified.

Publishing the same run again changes nothing; one that was measured anew replaces the former.

Exit status: 0; 2 wrong usage; 4 the run cannot be read, holds a secret, or was refused.
"""

INCLUDE = "include"

To = Annotated[str, Parameter(metavar="PLACE", help="Address of a leaderboard, or a directory.")]
TokenFile = Annotated[
    str | None, Parameter(metavar="FILE", help="File with the token, in place of CCL_BENCH_TOKEN.")
]


def app(program: str) -> App:
    """Return the command."""
    run = "examples/runs/llama-tiny-fsdp2-tp2-gloo"
    examples = [
        f"{program} publish {run} --to leaderboard-data",
        f"{program} publish {run} --to https://leaderboard.example --traces include --dry-run",
    ]
    made = options.app("publish", ABOUT, examples)
    made.default(publish)
    return made


def publish(
    run: Annotated[str, Parameter(metavar="", help="Run directory, trace file or URL.")],
    /,
    *,
    to: To,
    traces: Annotated[
        str | None,
        Parameter(
            metavar="WHERE",
            help="Hand out the traces too: 'include' sends them along, an address such as s3://bucket/folder "
            "puts them there.",
        ),
    ] = None,
    trace_url: Annotated[
        str | None, Parameter(metavar="URL", help="Where the traces are already, for everybody to see.")
    ] = None,
    dry_run: Annotated[
        bool,
        Parameter(help="Only list what would leave this machine, and what it tells of people and machines."),
    ] = False,
    token_file: TokenFile = None,
    workload_card: options.Card = None,
    database: Database = None,
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    steps: options.Steps = options.EVERY_STEP,
) -> int:
    """Publish a run."""
    from ccl_bench.leaderboard import check_installed

    check_installed()
    from ccl_bench.leaderboard.bundle.parcel import Wanted

    destination = _destination(to, token_file, database)
    wanted = Wanted(
        run,
        workload_card,
        with_traces=traces == INCLUDE,
        storage=_storage(traces, trace_url),
        trace_url=trace_url,
        metrics=destination.metrics,
        jobs=jobs,
        use_cache=not no_cache,
        choice=steps.choice,
    )
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as scratch:
        parcel = _packed(wanted, Path(scratch))
        return _list(parcel) if dry_run else _hand_over(parcel, destination, Path(scratch))


def _destination(to: str, token_file: str | None, database: str | None) -> Destination:
    from ccl_bench.leaderboard.publishing.client import Leaderboard, token_from
    from ccl_bench.leaderboard.publishing.sending import Directory, Server

    if "://" in to:
        if database:
            raise UsageError("--database is that of a directory, and --to names a server", fix="leave it out")
        return Server(Leaderboard(to, token_from(token_file)))
    if Path(to).exists() and not Path(to).is_dir():
        raise UsageError(f"{to} is no directory", fix="give a directory, or the address of a leaderboard")
    return Directory(Path(to), database)


def _storage(traces: str | None, trace_url: str | None) -> str | None:
    """Return the address in object storage that the traces go to; None where they do not."""
    if traces in {None, INCLUDE}:
        return None
    if trace_url:
        raise UsageError("--traces and --trace-url contradict each other", fix="give one of them")
    if "://" not in str(traces):
        raise UsageError(f"--traces {traces} is no address", fix=f"give {INCLUDE}, or s3://bucket/folder")
    return traces


def _packed(wanted: Wanted, scratch: Path) -> Parcel:
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.leaderboard.bundle.parcel import packed

    with progress_bar(1) as progress:
        parcel = packed(wanted, scratch, progress=progress)
    for name in parcel.scrubbed:
        _say(f"{name}: environment, output, host and other processes are left out of what is published")
    return parcel


def _list(parcel: Parcel) -> int:
    from ccl_bench.leaderboard.bundle.listing import listing
    from ccl_bench.report.console import show

    show(listing(parcel))
    return 0


def _hand_over(parcel: Parcel, destination: Destination, scratch: Path) -> int:
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.leaderboard.bundle.listing import told_in_short
    from ccl_bench.leaderboard.publishing.sending import store_traces

    if parcel.run_files and not parcel.sent:
        with progress_bar(len(parcel.run_files), "storing traces") as progress:
            store_traces(parcel, progress)
    with progress_bar(1, "sending") as progress:
        found = destination.take(parcel, scratch, progress)
    words = found.state.replace("_", "-")
    _say(f"published, {words}" if found.is_new else f"was published before, and is {words}")
    replaced = (f"it replaces {run[:12]}" for run in found.replaced)
    for remark in (*replaced, *found.remarks, *told_in_short(parcel)):
        _say(remark)
    sys.stdout.write(f"{found.place}\n")
    return 0


def _say(text: str) -> None:
    from ccl_bench.cli.runner import say

    say(PROGRAM, text)
