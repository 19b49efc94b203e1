"""The umasks under which private files are tested, and what is open to others below a folder."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UMASKS = (0o000, 0o022, 0o077, 0o777)
"""None, the usual one, that of careful users, and one that takes every right of the owner too."""


@contextlib.contextmanager
def under_umask(mask: int) -> Iterator[None]:
    """Let this process, and what it starts, make files with a umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def not_private(folder: Path) -> dict[str, str]:
    """Return the permissions of a folder and of everything below it that are not those of its owner alone."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(folder))] = f"{mode:o}"
    return found
