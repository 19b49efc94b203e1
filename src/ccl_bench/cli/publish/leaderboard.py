"""The commands that run a leaderboard: `serve`, and `board site`, `index`, `backup`, `token`, `worker`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import counted
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar, say
from ccl_bench.leaderboard.errors import check_installed
from ccl_bench.report.console import aligned, show
from ccl_bench.storage import close_to_others, is_open_to_others

if TYPE_CHECKING:
    from ccl_bench.leaderboard.store import Store

ABOUT_SERVE = """\
DATA is a directory into which ccl-bench publish wrote runs. Runs that are added later appear at once.

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


DEMO_FOLDER = "leaderboard-demo"

serve_app = options.app(
    "serve", ABOUT_SERVE, [f"{PROGRAM} serve --demo", f"{PROGRAM} serve leaderboard-data --port 8000"]
)


@serve_app.default
def serve(
    data: Annotated[
        str, Parameter(metavar="", help="Directory with the published runs; needed without --demo.")
    ] = "",
    /,
    *,
    demo: Annotated[
        bool,
        Parameter(negative="", help=f"Fill DATA, by default {DEMO_FOLDER}, with rows of the package."),
    ] = False,
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port; 0 for any free one.")] = 8000,
    database: Database = None,
    root_path: Annotated[str, Parameter(metavar="PATH", help="Path prefix of a proxy, such as /bench.")] = "",
    trusted_proxy: Annotated[
        list[str] | None,
        Parameter(
            metavar="ADDRESS",
            negative="",
            help="Address or network of a proxy that states who calls; may repeat.",
        ),
    ] = None,
    workers: Annotated[
        int, Parameter(metavar="N", help="Worker processes that recompute runs from their traces.")
    ] = 1,
) -> int:
    """Serve the leaderboard."""
    check_installed()
    from ccl_bench.leaderboard.federation.read_only import is_read_only
    from ccl_bench.leaderboard.publishing.ingest import remove_dead_uploads
    from ccl_bench.leaderboard.publishing.publications import reconcile
    from ccl_bench.leaderboard.publishing.settings import load_settings
    from ccl_bench.leaderboard.publishing.worker import log_protection, run_workers
    from ccl_bench.leaderboard.web.server import check_proxies, listening, run_server

    if workers < 0:
        raise UsageError(f"--workers {workers} is negative", fix="give 0 or more")
    check_proxies(trusted_proxy or ())
    if demo:
        data = data or DEMO_FOLDER
        fill_demo(data, database)
    elif not data:
        raise UsageError("no directory to serve", fix="give a data directory, or --demo for a filled one")
    store = open_current_store(data, database)
    if is_read_only(data):
        workers = 0  # what they find out goes into the files of runs
    else:
        reconcile(store, load_settings(store.data))
        remove_dead_uploads(store.data)
    if workers:
        log_protection(store)
    with listening(host, port) as (listener, address), run_workers(store.data, database, workers):
        sys.stdout.write(f"{address}{root_path.rstrip('/')}/\n")
        sys.stdout.flush()
        run_server(store, listener, root_path=root_path.rstrip("/"), proxies=trusted_proxy or ())
    return 0


def fill_demo(data: str, database: str | None) -> None:
    """Add the rows that come with the package to a data directory: reported ones, and the example runs."""
    from ccl_bench.cli.measure.demo import example_runs
    from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload
    from ccl_bench.leaderboard.publishing.client import DirectoryDestination
    from ccl_bench.leaderboard.reported.observations import packaged
    from ccl_bench.leaderboard.store import open_store

    store = open_store(data, database, create=True)
    for reported in packaged():
        added = store.add_reported(reported)
        say(
            PROGRAM,
            f"{added:,} rows of {reported.source.title} added"
            if added
            else f"{reported.source.title} is there",
        )
    for name, path in example_runs().items():
        with tempfile.TemporaryDirectory(prefix="ccl-bench-") as scratch:
            destination = DirectoryDestination(Path(data), database)
            with progress_bar(1, name) as progress:
                upload = prepare_upload(
                    UploadRequest(str(path), metrics=destination.metrics), Path(scratch), progress=progress
                )
            destination.take(upload, Path(scratch), None)
    say(PROGRAM, f"the board is in {data}")


def open_current_store(data: str, database: str | None) -> Store:
    """Return the store with its index up to date, and report runs that cannot be shown."""
    from ccl_bench.leaderboard.federation.read_only import is_read_only, writable_view
    from ccl_bench.leaderboard.store import open_store

    store = open_store(writable_view(data) if is_read_only(data) else data, database)
    if is_open_to_others(store.data):
        say(PROGRAM, f"other users can look into {data}, which holds the database: chmod 700 {data}")
    with progress_bar(1, "reading published runs") as progress:
        store.catch_up(progress=progress)
    report_refused(store)
    return store


def report_refused(store: Store) -> None:
    """Report on stderr which bundles were not indexed, and why."""

    for error in store.refused.values():
        say(PROGRAM, f"left out: {error}")


ABOUT_SITE = """A script in the page filters, sorts and chooses columns; every run is readable without it.

Exit status: 0; 2 wrong usage, or the directory already exists; 4 the directory or database cannot be used.
"""


site_app = options.app("site", ABOUT_SITE, [f"{PROGRAM} board site leaderboard-data -o public"])


@site_app.default
def site(
    data: Data,
    /,
    *,
    output: Annotated[str, Parameter(alias="-o", metavar="DIR", help="Directory to write into.")],
    database: Database = None,
    force: Annotated[bool, Parameter(help="Replace an existing leaderboard.")] = False,
) -> int:
    """Write the leaderboard."""
    check_installed()
    from ccl_bench.leaderboard.site import write_site

    store = open_current_store(data, database)
    with progress_bar(1, "writing pages") as progress:
        written = write_site(store, Path(output), force=force, progress=progress)
    for error in written.left_out:
        say(PROGRAM, f"left out: {error}")
    show(f"{output}/index.html  {counted(written.runs, 'run')}, {counted(written.files, 'file')}")
    return 0


ABOUT_INDEX = """\
The files are authoritative: this restores the database whatever happened to it. A file that changed after \
publication is detected by its hash. New entries in the histories of runs are added to the log.

--downgrade converts the tables to a revision that an older version of ccl-bench reads, and keeps the runs. \
Revision 0002 has neither log nor keys, 0001 neither tokens nor jobs; an upgrade does not bring them back.

Exit status: 0; 2 wrong usage; 4 a run cannot be used, or the directory or database cannot.
"""


index_app = options.app("index", ABOUT_INDEX, [f"{PROGRAM} board index leaderboard-data"])


@index_app.default
def index(
    data: Data,
    /,
    *,
    downgrade: Annotated[
        Literal["0001", "0002", "0003", "0004", "0005", "0006"] | None,
        Parameter(
            metavar="REVISION", help="Only convert the tables back to a revision, for an older version."
        ),
    ] = None,
    database: Database = None,
) -> int:
    """Make the index anew."""
    check_installed()
    from ccl_bench.leaderboard.store import open_store
    from ccl_bench.leaderboard.store.database import downgrade as take_back

    store = open_store(data, database)
    if downgrade:
        take_back(store.engine, downgrade)
        show(f"the tables are those of revision {downgrade}")
        return 0
    with progress_bar(1, "reading published runs") as progress:
        store.rebuild(progress=progress)
    report_refused(store)
    show(f"{counted(store.count, 'run')} in the index")
    return InputError.exit_status if store.refused else 0


ABOUT_BACKUP = """\
An index in PostgreSQL is not copied: run pg_dump before. The copy is a data directory. After \
ccl-bench board index DIR it can be served, and ccl-bench board audit DIR shows that nothing is missing.

Exit status: 0; 2 wrong usage; 4 the directory already exists, or a directory or database cannot be used.
"""


backup_app = options.app("backup", ABOUT_BACKUP, [f"{PROGRAM} board backup leaderboard-data -o copy"])


@backup_app.default
def backup(
    data: Data,
    /,
    *,
    output: Annotated[str, Parameter(alias="-o", metavar="DIR", help="Directory to write into.")],
    database: Database = None,
) -> int:
    """Copy the leaderboard."""
    check_installed()
    from ccl_bench.leaderboard.publishing.backup import write_backup
    from ccl_bench.leaderboard.store import open_store

    store = open_store(data, database)
    with progress_bar(1, "copying runs") as progress:
        runs = write_backup(store, Path(output), progress=progress)
    show(f"{output}  {counted(runs, 'run')}")
    return 0


ABOUT_TOKENS = """DATA is the directory of the leaderboard; it is created if it is missing.

Exit status: 0; 2 wrong usage; 4 there is no such token, or the directory or database cannot be used.
"""

ABOUT_WORKER = """\
ccl-bench serve starts one worker. More workers can run in parallel, also on other machines with the same \
directory and database.

Exit status: 0 stopped; 2 wrong usage; 4 the directory or database cannot be used.
"""


token_app = options.app(
    "token",
    ABOUT_TOKENS,
    [f"{PROGRAM} board token leaderboard-data ada", f"{PROGRAM} board token leaderboard-data --list"],
)
worker_app = options.app("worker", ABOUT_WORKER, [f"{PROGRAM} board worker leaderboard-data"])


@token_app.default
def token(
    data: Data,
    submitter: Annotated[str | None, Parameter(metavar="", help="Name of the submitter.")] = None,
    /,
    *,
    role: Annotated[
        Literal["submitter", "maintainer", "admin"],
        Parameter(
            converter=options.choice,
            help="What they may do: publish; also approve and withdraw; also create tokens.",
        ),
    ] = "submitter",
    days: Annotated[
        int | None, Parameter(metavar="N", help="Validity in days, at most 366; 90 by default.")
    ] = None,
    listing: Annotated[bool, Parameter(name="--list", help="List all tokens.")] = False,
    revoke: Annotated[str | None, Parameter(metavar="ID", help="Revoke a token.")] = None,
    database: Database = None,
) -> int:
    """Make, list or revoke tokens."""
    check_installed()
    from ccl_bench.leaderboard.publishing import tokens
    from ccl_bench.leaderboard.publishing.moderation import OPERATOR
    from ccl_bench.leaderboard.store import open_store

    if [submitter is not None, listing, revoke is not None].count(True) != 1:
        raise UsageError("a name, --list or --revoke is required", fix="give one of them")
    store = open_store(data, database, create=submitter is not None)
    if submitter is not None:
        valid = tokens.DEFAULT_DAYS if days is None else days
        new_token = tokens.create_token(store.engine, submitter, tokens.Role(role), days=valid)
        tokens.log_event(store.data, "token-made", submitter=submitter, role=role, by=OPERATOR.submitter)
        close_to_others(sys.stdout)
        sys.stdout.write(f"{new_token}\n")
    elif revoke is not None:
        tokens.revoke_token(store.engine, revoke)
        tokens.log_event(store.data, "token-revoked", token=revoke, by=OPERATOR.submitter)
    else:
        rows = [
            (
                row.id,
                row.submitter,
                row.role.value,
                row.created_at[:10],
                row.expires_at[:10],
                f"revoked {row.revoked_at[:10]}" if row.revoked_at else "",
            )
            for row in tokens.list_tokens(store.engine)
        ]
        show(aligned(("ID", "SUBMITTER", "ROLE", "MADE", "EXPIRES", ""), rows))
    return 0


@worker_app.default
def worker(
    data: Data,
    /,
    *,
    database: Database = None,
    until_empty: Annotated[bool, Parameter(help="Stop when no job is due.")] = False,
) -> int:
    """Recompute runs."""
    check_installed()
    from ccl_bench.leaderboard.publishing.worker import Worker

    run_count = Worker(open_current_store(data, database)).run(until_empty=until_empty)
    say(PROGRAM, f"{counted(run_count, 'run')} recomputed")
    return 0
