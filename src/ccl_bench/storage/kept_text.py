"""Keep a text that takes long to make in the cache, so that it is made once on a machine."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from ccl_bench.storage.files import cache_directory, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable


def kept_text(name: str, make: Callable[[], str]) -> str:
    """Return the text of this name, which `make` makes where it is not kept, or not as it was.

    `name` names all that the text comes from. A cache that cannot be written is no error.
    """
    path = cache_directory() / "texts" / name
    with contextlib.suppress(OSError):
        digest, _, kept = path.read_bytes().partition(b"\n")
        if digest == _digest(kept):
            return kept.decode()
    text = make()
    with contextlib.suppress(OSError), write_atomically(path) as temporary:
        temporary.write_bytes(_digest(text.encode()) + b"\n" + text.encode())
    return text


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
