"""Small text files, read with a limit: never a device, never more than asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.errors import InputError

if TYPE_CHECKING:
    from upath import UPath

    Location = str | Path | UPath

MIB = 1 << 20


def text_of(location: Location, limit: int = MIB) -> str:
    """Return the text of a file of at most `limit` bytes, with damaged UTF-8 marked as U+FFFD."""
    raw = _raw(location, limit)
    if len(raw) > limit:
        raise InputError(
            f"is larger than {limit / MIB:g} MiB",
            where=str(location),
            fix="check that this is the right file; files of this kind are small",
        )
    if b"\0" in raw:
        raise InputError("is a binary file, not text", where=str(location), fix="name a text file in UTF-8")
    return raw.decode("utf-8-sig", errors="replace")


def _raw(location: Location, limit: int) -> bytes:
    try:
        path = _path(location)
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(problem, where=str(location), fix="check the path")
        with path.open("rb") as stream:
            return bytes(stream.read(limit + 1))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read: {error}", where=str(location), fix="check the path and its permissions"
        ) from error


def _path(location: Location) -> Path | UPath:
    if isinstance(location, str) and "://" in location:
        from upath import UPath

        return UPath(location)
    return Path(location) if isinstance(location, str) else location
