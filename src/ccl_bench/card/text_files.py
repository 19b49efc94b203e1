"""Small text files, read with a limit: never a device, never more than asked for."""

from __future__ import annotations

from pathlib import Path

from ccl_bench.errors import InputError
from ccl_bench.storage import location, unreadable

Location = str | Path

MIB = 1 << 20


def text_of(name: Location, limit: int = MIB) -> str:
    """Return the text of a file of at most `limit` bytes, with damaged UTF-8 marked as U+FFFD."""
    raw = _raw(name, limit)
    if len(raw) > limit:
        raise InputError(
            f"is larger than {limit / MIB:g} MiB",
            where=str(name),
            fix="check that this is the right file; files of this kind are small",
        )
    if b"\0" in raw:
        raise InputError("is a binary file, not text", where=str(name), fix="name a text file in UTF-8")
    return raw.decode("utf-8-sig", errors="replace")


def _raw(name: Location, limit: int) -> bytes:
    path = location(name)
    try:
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(problem, where=str(name), fix="check the path")
        with path.open("rb") as stream:
            return bytes(stream.read(limit + 1))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise InputError(f"is no path: {error}", where=repr(name), fix="check the path") from error
