"""Journals beside SQLite databases: what a writer that did not end left there, and the database with it.

A rollback journal holds the pages as they were before the last transaction, a write-ahead log those that were
written since. SQLite alone applies them, to a private copy: nothing beside the original changes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ccl_bench.base.errors import InputError
from ccl_bench.storage.files import LOG, ROLLBACK, open_raw, sha256
from ccl_bench.storage.remote import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG_HEADER_BYTES = 32
_LEAST_BYTES = {ROLLBACK: 1, LOG: _LOG_HEADER_BYTES + 1}
"""Size from which on SQLite looks into a journal."""

_FRAME_HEADER_BYTES = 24
_BLOCK_BYTES = 1 << 20

_ROLLBACK_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"

_FIX = (
    "open the database once with sqlite3 on the machine that wrote it, and run PRAGMA "
    "wal_checkpoint(TRUNCATE); or export it again"
)


def journals_of(path: Path) -> list[Path]:
    """Return the journals beside a database, here or behind an address, that SQLite would look into."""
    place = path if is_remote(path) else Path(os.path.realpath(path))
    journals = []
    for suffix, least_bytes in _LEAST_BYTES.items():
        journal = place.with_name(place.name + suffix)
        if is_remote(journal):
            is_in_use = journal.exists() and journal.stat().st_size >= least_bytes
        else:
            try:
                status = journal.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size < least_bytes:
                continue
            try:
                with open_raw(journal) as stream:  # SQLite overwrites the first byte of a finished rollback
                    is_in_use = suffix == LOG or stream.read(1) != b"\0"
            except OSError:  # whoever reads the database reports it
                is_in_use = True
        if is_in_use:
            journals.append(journal)
    return journals


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file and the journals beside it as they lie on disk, as of one file."""
    return sha256(path, *journals_of(path))


@dataclass(frozen=True, slots=True)
class Recovered:
    """A database without journals."""

    path: Path
    unfinished: str = ""
    """What its writer did not finish, after the file's name; empty if nothing is known to be missing."""


@contextmanager
def recovered(path: Path, name: str) -> Iterator[Recovered]:
    """Give a local database as SQLite recovers it: itself without journals, else a copy, removed at the end.

    `name` names it in messages. Raises InputError if its journals cannot be used.
    """
    journals = journals_of(path)
    if not journals:
        yield Recovered(path)
        return
    import sqlite3  # which most commands do without

    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as folder:
        copy = Path(folder, "database")
        try:
            _copy(path, journals, copy, name)
            unfinished = _recover(copy, name)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"has a journal that cannot be used: {error}", where=name, fix=_FIX) from error
        yield Recovered(copy, unfinished)


def _copy(path: Path, journals: list[Path], copy: Path, name: str) -> None:
    """Copy a database and its journals; InputError if there is no room, or if they change meanwhile."""
    for journal in journals:
        if journal.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(journal))
    suffixes = {journal: LOG if journal.name.endswith(LOG) else ROLLBACK for journal in journals}
    copies = {path: copy} | {journal: Path(f"{copy}{suffix}") for journal, suffix in suffixes.items()}
    before = [*map(_state, copies)]
    needed_bytes, free_bytes = sum(size for size, *_ in before), shutil.disk_usage(copy.parent).free
    if 2 * needed_bytes > free_bytes:
        message = f"has a journal, and the copy to apply it to needs {2 * needed_bytes:,} bytes of free disk"
        fix = "name a folder with more space in $TMPDIR"
        raise InputError(f"{message}; there are {free_bytes:,}", where=name, fix=fix)
    for original, place in copies.items():
        with open_raw(original) as source, place.open("xb") as target:
            shutil.copyfileobj(source, target, _BLOCK_BYTES)
    if [*map(_state, copies)] != before:
        fix = "wait until the program that writes it has ended"
        raise InputError("is being written: it changed while it was copied", where=name, fix=fix)


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


_ROLLED_BACK = "its last transaction was not finished, and is rolled back"
_CUT_LOG = "the end of its write-ahead log is damaged or was not finished, and is not used"


def _recover(copy: Path, name: str) -> str:
    """Let SQLite apply the journals of a copy, and return what its writer did not finish.

    A rollback journal can name another file, which SQLite would look into and remove: such a one is refused.
    """
    import sqlite3

    rollback, log = (Path(f"{copy}{suffix}") for suffix in (ROLLBACK, LOG))
    if rollback.exists():
        with rollback.open("rb") as stream:
            stream.seek(max(0, rollback.stat().st_size - len(_ROLLBACK_MAGIC)))
            names_another = stream.read() == _ROLLBACK_MAGIC
        if names_another:
            message = "has a journal of a transaction over several databases, which cannot be finished alone"
            raise InputError(message, where=name, fix=_FIX)
    unfinished = _ROLLED_BACK if rollback.exists() else ""
    most_bytes = sum(path.stat().st_size for path in copy.parent.iterdir())
    with closing(sqlite3.connect(copy, isolation_level=None, cached_statements=0)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for guard in ("trusted_schema=OFF", "mmap_size=0", "synchronous=OFF"):
            connection.execute(f"PRAGMA {guard}").close()
        connection.execute("PRAGMA schema_version").fetchone()
        if log.exists():
            frames = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[1]
            with log.open("rb") as stream:
                unfinished = _CUT_LOG if _goes_on(stream, frames) else unfinished
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    if copy.stat().st_size > most_bytes:
        raise InputError("has a journal that claims more than it holds", where=name, fix=_FIX)
    return unfinished


def _goes_on(log: BinaryIO, frames: int) -> bool:
    """Whether a write-ahead log has frames of its last writer beyond those that SQLite uses."""
    if frames <= 0:  # not even its header is right
        return True
    header = log.read(_LOG_HEADER_BYTES)
    frame_bytes, salts = _FRAME_HEADER_BYTES + int.from_bytes(header[8:12], "big"), header[16:24]
    end = log.seek(0, os.SEEK_END)
    for start in range(_LOG_HEADER_BYTES + frames * frame_bytes, end, frame_bytes):
        log.seek(start + 8)
        if log.read(len(salts)) == salts:
            return True
    return False
