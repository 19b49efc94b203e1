"""The statement of origin of a bundle: who published which bytes and when, signed as minisign signs.

The signed message is what `sha256sum` prints for the files of the bundle: its own hash is the identifier of
the run. The trusted comment, signed too, names the run, the publisher and the time. Both are in the one file
`origin.minisig`, which lies beside the files and is not part of the identifier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import FILES, HISTORY, ORIGIN, bundle_id, hash_list
from ccl_bench.leaderboard.bundle.minisign import WrongSignatureError, parse_signature

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.bundle.minisign import PublicKey, SecretKey, Signature

_COMMENT = re.compile(
    r"ccl-bench origin\trun:(?P<run>[0-9a-f]{64})\tpublisher:(?P<publisher>[^\t]{1,64})"
    r"\ttime:(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
)
_FIX = "publish the run again, with --sign"


@dataclass(frozen=True, slots=True)
class Origin:
    """A statement of origin; it counts for nothing before `verify` found it true."""

    publisher: str
    at: str
    """ISO 8601 in UTC, to the second, by the publisher's clock."""
    run: str
    """Identifier of the bundle that was signed."""
    signature: Signature

    def verify(self, folder: Path, key: PublicKey) -> None:
        """Raise WrongSignatureError unless this key signed this statement and the files as they are."""
        self.signature.verify_comment(key)
        if bundle_id(folder) != self.run:
            wrong = f"a file changed after it was signed: it was {self.run[:12]}, and now is another bundle"
            raise WrongSignatureError(wrong, where=ORIGIN, fix="get the files again from who published them")
        self.signature.verify(hash_list(folder), key)


def sign_bundle(folder: Path, key: SecretKey, publisher: str) -> None:
    """Write the statement of origin into the folder of a bundle."""
    comment = f"ccl-bench origin\trun:{bundle_id(folder)}\tpublisher:{publisher}"
    comment += f"\ttime:{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if not _COMMENT.fullmatch(comment) or not publisher.isprintable():
        fix = "a name has 1 to 64 characters in one line; a directory takes the card's contributor"
        raise InputError(f"{publisher[:100]!r} is no name that can be signed for", fix=fix)
    (folder / ORIGIN).write_text(key.sign(hash_list(folder), comment).text, encoding="utf-8")


def verify_bundle(folder: Path, key: PublicKey) -> Origin:
    """Return the statement of a bundle; raise InputError unless this key signed it and the files."""
    if not folder.is_dir():
        raise InputError("is no directory", where=str(folder), fix="give the folder of a bundle")
    foreign = sorted({path.name for path in folder.iterdir()} - {*FILES, HISTORY, ORIGIN})
    if foreign:
        raise InputError("does not belong in a bundle", where=str(folder / foreign[0]), fix="remove it")
    origin = read_origin(folder)
    if origin is None:
        fix = f"its publisher did not sign it; get {ORIGIN} too if they did"
        raise InputError("is unsigned", where=str(folder), fix=fix)
    origin.verify(folder, key)
    return origin


def read_origin(folder: Path) -> Origin | None:
    """Return the statement in the folder of a bundle, not verified; None where there is none."""
    path = folder / ORIGIN
    try:
        signature = parse_signature(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage.unreadable(path, error) from error
    except ValueError as error:
        raise InputError(f"is no signature of minisign: {error}", where=ORIGIN, fix=_FIX) from error
    stated = _COMMENT.fullmatch(signature.comment)
    if stated is None or not stated["publisher"].isprintable():
        raise InputError("does not say which run, publisher and time it is for", where=ORIGIN, fix=_FIX)
    return Origin(stated["publisher"], stated["at"], stated["run"], signature)
