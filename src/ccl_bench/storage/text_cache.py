"""The cache between commands: where it lies, and texts that take long to make."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.storage.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE_VARIABLE = "CCL_BENCH_CACHE"


def cache_directory() -> Path:
    """Return the folder that keeps tables between commands: $CCL_BENCH_CACHE, else the user's cache."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ccl-bench"


def text_folder() -> Path:
    """Return the folder that keeps texts between commands."""
    return cache_directory() / "texts"


def kept_text(name: str, make: Callable[[], str]) -> str:
    """Return a text that takes long to make from the cache; made where it is not kept, or not as it was.

    `name` names all that the text comes from.
    """
    text = load_text(name)
    if text is None:
        text = make()
        save_text(name, text)
    return text


def load_text(name: str) -> str | None:
    """Return the cached text of a name; None if there is none, or if it is damaged."""
    with contextlib.suppress(OSError):
        digest, _, content = (text_folder() / name).read_bytes().partition(b"\n")
        if digest == hashlib.sha256(content).hexdigest().encode():
            return content.decode()
    return None


def save_text(name: str, text: str) -> None:
    """Keep a text in the cache; a cache that cannot be written is no error."""
    content = text.encode()
    with contextlib.suppress(OSError), write_atomically(text_folder() / name) as temporary:
        temporary.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
