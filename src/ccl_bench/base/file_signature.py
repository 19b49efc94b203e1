"""What changes where files do: the names, sizes and times of all that lies at some places."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_FILES = 20_000
"""Files beyond which looking at each is no saving."""

_OURS = "__pycache__"
"""A folder that Python fills by itself."""


class UnwatchableError(Exception):
    """The places hold what no signature covers: a link, a closed folder, too many files."""


def file_signature(places: Iterable[str]) -> tuple[str, int]:
    """Return the signature of files and folders with all in them, and when the latest of them changed.

    The time is in ns since the epoch. Hidden names are left out, as runs leave them out. Raises
    UnwatchableError.
    """
    seen, latest = hashlib.sha256(), 0
    for number, (path, status) in enumerate(_entries(places)):
        if number > MOST_FILES:
            raise UnwatchableError
        line = [path, status.st_mode]
        if not stat.S_ISDIR(status.st_mode):
            line += [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            latest = max(latest, status.st_mtime_ns, status.st_ctime_ns)
        seen.update(f"{line}\n".encode(errors="surrogateescape"))
    return seen.hexdigest(), latest


def _entries(places: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    try:
        for place in places:
            real = os.path.realpath(place)
            status = Path(real).stat()
            yield real, status
            if stat.S_ISDIR(status.st_mode):
                yield from _inside(real)
    except OSError as error:
        raise UnwatchableError from error


def _inside(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if entry.name[0] != "." and entry.name != _OURS]
    for entry in sorted(shown, key=lambda entry: entry.name):
        if entry.is_symlink():
            raise UnwatchableError
        yield entry.path, entry.stat()
        if entry.is_dir():
            yield from _inside(entry.path)
