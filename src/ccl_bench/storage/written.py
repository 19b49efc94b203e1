"""Files that commands wrote: one that has not changed since may be replaced without asking.

The hash of each file is kept in the cache, so that this works for every format, and a file that somebody
edited is safe. Without the cache no file is recognised.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.storage.files import cache_directory, read_object, replace_object, sha256

if TYPE_CHECKING:
    from pathlib import Path

FILE = "written.json"
_MOST = 1000
"""Files that are remembered; older ones are forgotten."""


def remember(path: Path) -> None:
    """Keep the hash of a file that a command wrote, if the cache can be written."""
    with contextlib.suppress(OSError, InputError):
        notes = cache_directory() / FILE
        notes.parent.mkdir(parents=True, exist_ok=True)
        others = {key: value for key, value in read_object(notes).items() if key != _key(path)}
        kept = dict([*others.items()][1 - _MOST :])
        replace_object(notes, {**kept, _key(path): sha256(path)})


def is_as_written(path: Path) -> bool:
    """Whether a file is as a command wrote it there."""
    try:
        digest = read_object(cache_directory() / FILE).get(_key(path))
        return digest is not None and path.is_file() and digest == sha256(path)
    except (OSError, InputError):
        return False


def _key(path: Path) -> str:
    return hashlib.sha256(str(path.resolve()).encode(errors="surrogateescape")).hexdigest()[:32]
