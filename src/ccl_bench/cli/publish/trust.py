"""The commands of trust: `sign new`, `sign verify`, `board key` and `board audit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import counted, encode_json
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.publish.leaderboard import Data, Database  # noqa: TC001  cyclopts looks them up
from ccl_bench.cli.runner import progress_bar, say
from ccl_bench.leaderboard.errors import check_installed
from ccl_bench.report.console import aligned, show

ABOUT_KEYGEN = """\
Both files have the format of minisign. The secret key has no password; only its owner can read the file.

Exit status: 0; 2 wrong usage; 4 a file cannot be written, or already exists.
"""

ABOUT_KEY = """\
The leaderboard then accepts runs that the submitter signed with it, and shows them as signed. It refuses \
signatures by any other key.

Exit status: 0; 2 wrong usage, or the key is revoked or belongs to another submitter; 4 a file, key, \
directory or database cannot be used.
"""

ABOUT_VERIFY = """FOLDER holds the files of the bundle with origin.minisig, as a leaderboard serves them.

Exit status: 0 it is signed with this key and unchanged; 2 wrong usage; 4 it is not, or cannot be read.
"""

ABOUT_AUDIT = """\
The log has an entry for every change of every run, each with the hash of the one before it. The audit \
checks this chain, that each run on the board has its entries, and that files, histories and signatures are \
those that were accepted. It prints the head of the log: given to a later audit with --head, it shows \
that nothing was removed or rewritten since.

Exit status: 0; 2 wrong usage; 4 something is wrong, or the directory or database cannot be used.
"""


keygen_app = options.app("new", ABOUT_KEYGEN, [f"{PROGRAM} sign new ada"])


@keygen_app.default
def keygen(
    name: Annotated[str, Parameter(metavar="", help="Path of both files, without .key and .pub.")], /
) -> int:
    """Make a key."""
    check_installed()
    from ccl_bench.leaderboard.bundle.origin import new_key

    secret, public = Path(f"{name}.key"), Path(f"{name}.pub")
    for path in (secret, public):
        if path.exists():
            raise InputError("already exists", where=str(path), fix="choose another name")
    key_pair = new_key()
    key_pair.write(secret)
    key_pair.public.write(public)
    say(PROGRAM, f"the secret key is {secret}: keep it, and give the operator of the leaderboard {public}")
    sys.stdout.write(f"{public}\n")
    return 0


key_app = options.app(
    "key",
    ABOUT_KEY,
    [f"{PROGRAM} board key leaderboard-data ada ada.pub", f"{PROGRAM} board key leaderboard-data --list"],
)


@key_app.default
def key(
    data: Data,
    submitter: Annotated[str | None, Parameter(metavar="", help="Name of the submitter.")] = None,
    file: Annotated[str | None, Parameter(metavar="", help="Their public key.")] = None,
    /,
    *,
    listing: Annotated[bool, Parameter(name="--list", help="List all keys.")] = False,
    revoke: Annotated[str | None, Parameter(metavar="ID", help="Revoke a key.")] = None,
    database: Database = None,
) -> int:
    """Register, list or revoke keys."""
    check_installed()
    from ccl_bench.leaderboard.bundle.origin import read_public_key
    from ccl_bench.leaderboard.publishing import tokens
    from ccl_bench.leaderboard.publishing.moderation import OPERATOR
    from ccl_bench.leaderboard.store import open_store

    if [submitter is not None, listing, revoke is not None].count(True) != 1:
        raise UsageError("a name with a file, --list or --revoke is required", fix="give one of them")
    if submitter is not None and file is None:
        raise UsageError("the public key is missing", fix="give its file after the name")
    store = open_store(data, database, create=submitter is not None)
    if submitter is not None and file is not None:
        public_key = read_public_key(Path(file))
        tokens.register_key(store.engine, submitter, public_key)
        entry = {"key": public_key.id, "submitter": submitter, "by": OPERATOR.submitter}
        tokens.log_event(store.data, "key-registered", **entry)
        sys.stdout.write(f"{public_key.id}\n")
    elif revoke is not None:
        tokens.revoke_key(store.engine, revoke)
        tokens.log_event(store.data, "key-revoked", key=revoke, by=OPERATOR.submitter)
    else:
        rows = [
            (
                row.id,
                row.submitter,
                row.created_at[:10],
                row.public_key,
                f"revoked {row.revoked_at[:10]}" if row.revoked_at else "",
            )
            for row in tokens.list_keys(store.engine)
        ]
        show(aligned(("ID", "SUBMITTER", "REGISTERED", "KEY", ""), rows))
    store.engine.dispose()
    return 0


verify_app = options.app("verify", ABOUT_VERIFY, [f"{PROGRAM} sign verify downloaded --key ada.pub"])


@verify_app.default
def verify(
    folder: Annotated[str, Parameter(metavar="", help="Folder of the bundle.")],
    /,
    *,
    key: Annotated[str, Parameter(metavar="FILE", help="Public key of the publisher.")],
) -> int:
    """Verify a bundle."""
    check_installed()
    from ccl_bench.leaderboard.bundle.origin import read_public_key, verify_bundle

    public = read_public_key(Path(key))
    origin = verify_bundle(Path(folder), public)
    show(f"{origin.run}  signed by {origin.publisher} at {origin.at} with the key {public.id}")
    return 0


audit_app = options.app("audit", ABOUT_AUDIT, [f"{PROGRAM} board audit leaderboard-data"])


@audit_app.default
def audit(
    data: Data,
    /,
    *,
    head: Annotated[
        str | None,
        Parameter(metavar="NUMBER:HASH", help="Head of an earlier audit, which the log must contain."),
    ] = None,
    form: options.TextOrJson = "text",
    database: Database = None,
) -> int:
    """Audit a leaderboard."""
    check_installed()
    from ccl_bench.leaderboard.publishing.audit import audit_store
    from ccl_bench.leaderboard.store import open_store

    store = open_store(data, database)
    with progress_bar(1, "checking runs") as progress:
        result = audit_store(store, head=head, progress=progress)
    store.engine.dispose()
    if form == "json":
        sys.stdout.write(encode_json(result).decode() + "\n")
        return InputError.exit_status if result.problems else 0
    for problem in result.problems:
        say(PROGRAM, f"{problem.where}: {problem.message}")
    if result.unlisted:
        unlisted = counted(result.unlisted, "folder")
        say(PROGRAM, f"{unlisted} of bundles not on the board: ccl-bench board index puts them there")
    signed = f"{result.signed} of them signed"
    show(f"{counted(result.runs, 'run')}, {signed}; {counted(result.entries, 'entry', 'entries')} in the log")
    if result.head:
        show(f"head {result.head}")
    return InputError.exit_status if result.problems else 0
