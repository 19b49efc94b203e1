"""The log of publishing: one line of JSON for everything that was done or refused, and by whom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.leaderboard.store.database import timestamp

if TYPE_CHECKING:
    from pathlib import Path

FILE = "publishing.log"
_LONGEST = 1000
"""Characters of a text that a stranger wrote."""


def log_event(data: Path, event: str, **said: str | int | None) -> None:
    """Append one line; several processes may do so at once. A token is never said, only its id."""
    line = {"at": timestamp(), "event": event} | {
        name: value[:_LONGEST] if isinstance(value, str) else value
        for name, value in said.items()
        if value is not None
    }
    handle = os.open(data / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(handle, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(handle)
