"""The disk: space that is reserved before it is written, and files that outlive a loss of power."""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes
    from pathlib import Path
    from typing import BinaryIO

KEPT_FREE_BYTES = 256 << 20
"""Bytes that what strangers send leaves on a disk: the database, histories and logs of days need less."""
KEPT_FREE_FILES = 20_000
"""Files that it leaves room for: twice those of the largest upload."""

BLOCK_BYTES = 4096
"""Size of the pieces in which file systems assign space."""
_RESERVED_BYTES = 1 << 20
"""Files from which on space is reserved; smaller ones together stay far below `KEPT_FREE_BYTES`."""


def stored_bytes(size: int) -> int:
    """Return the bytes that a file takes on a disk: whole blocks, and one for its name and attributes."""
    return (-(-size // BLOCK_BYTES) + 1) * BLOCK_BYTES


def check_space(place: Path | int, size: int) -> None:
    """Raise OSError (ENOSPC) unless a file system keeps enough free after `size` more bytes."""
    status = os.statvfs(place)
    is_full = status.f_bavail * status.f_frsize < size + KEPT_FREE_BYTES
    # Some file systems, such as btrfs, have no fixed number of files, and state zero.
    if is_full or (status.f_files and status.f_favail < KEPT_FREE_FILES):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reserve(stream: BinaryIO, size: int) -> None:
    """Reserve the space of a file that is about to be written; OSError (ENOSPC) if it is not free.

    Other processes see the space as taken from here on, so that two do not count on the same.
    """
    check_space(stream.fileno(), size)
    if size >= _RESERVED_BYTES and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            # The sandbox of recomputation has no such call: it could fill the disk before the worker looks.
            if error.errno != errno.ENOSYS:
                raise


@cache
def _libc() -> ctypes.CDLL:
    import ctypes  # which most commands do without

    return ctypes.CDLL(None)


def sync_file_system(folder: Path) -> None:
    """Write everything that was changed on the file system of a folder to its disk.

    This takes one flush of the disk, however many files there are. Without the call, as on macOS, all file
    systems are written.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not hasattr(_libc(), "syncfs"):
            os.sync()
        elif _libc().syncfs(descriptor):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
