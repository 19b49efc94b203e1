"""Folders and files that only their owner can use, whatever the umask.

What exists already keeps its permissions: they may be the choice of the user.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ccl_bench.storage.files import set_permissions, walk

if TYPE_CHECKING:
    from typing import BinaryIO

_FOLDER, _FILE = 0o700, 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder(path: Path) -> Path:
    """Return a folder, which is made with those above it that are missing."""
    if not path.is_dir():
        private_folder(path.parent)
        with contextlib.suppress(FileExistsError):  # another process was faster, or it is a file
            path.mkdir(_FOLDER)
            set_permissions(path, _FOLDER)
    return path


def temporary_folder(place: Path | None, prefix: str | None = None) -> Path:
    """Return a new folder below a place; by default below that of the system for temporary files."""
    folder = Path(tempfile.mkdtemp(dir=place, prefix=prefix))
    set_permissions(folder, _FOLDER)
    return folder


def open_private(path: Path, mode: str, **how: Any) -> IO[Any]:
    """Open a file to write; the permissions of a new one are its owner's."""
    return open(path, mode, opener=_opened, **how)


def _opened(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_EXCL, _FILE)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags, _FILE)
    set_permissions(descriptor, _FILE)
    return descriptor


def make_private(folder: Path) -> None:
    """Take everything below a folder of this process, and the folder, from others than their owner."""
    for place, _, names in walk(folder):
        set_permissions(place, _FOLDER)
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118  many paths
            if not os.path.islink(path):  # noqa: PTH114  many paths
                set_permissions(path, _FILE)


def close_to_others(stream: BinaryIO | IO[str]) -> None:
    """Take an open file from others than its owner; a terminal, a pipe or a file of others stays as it is."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        status = os.fstat(stream.fileno())
        is_own = hasattr(os, "geteuid") and status.st_uid == os.geteuid()
        if stat.S_ISREG(status.st_mode) and is_own:
            os.fchmod(stream.fileno(), stat.S_IMODE(status.st_mode) & ~_OTHERS)


def is_open_to_others(path: Path) -> bool:
    """Whether anybody but the owner of a file or folder has a right to it."""
    return bool(path.stat().st_mode & _OTHERS)
