"""Workers beside a server: processes of their own that end with it, and are replaced when they die before."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 10.0
"""Time that a worker has to stop."""
_PAUSE_S = 1.0
"""Time before a worker that died is replaced."""


class _Place(msgspec.Struct, frozen=True):
    """Where a worker works; told on its stdin, since an address may hold a password."""

    data: str
    database: str | None
    parent: int


@contextlib.contextmanager
def workers_beside(data: Path, database: str | None, count: int) -> Iterator[None]:
    """Have some workers run as long as the context does."""
    place = msgspec.json.encode(_Place(str(data.resolve()), database, os.getpid()))
    stopping = threading.Event()
    keepers = [threading.Thread(target=_keep_one, args=(place, stopping)) for _ in range(count)]
    try:
        for keeper in keepers:
            keeper.start()
        yield
    finally:
        stopping.set()
        for keeper in keepers:
            keeper.join()


def _keep_one(place: bytes, stopping: threading.Event) -> None:
    """Have one worker run until it is time to stop."""
    while not stopping.is_set():
        process = _started(place)
        while process.poll() is None and not stopping.wait(_PAUSE_S):
            pass
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
        process.kill()
        process.wait()


def _started(place: bytes) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own: Ctrl-C reaches the server alone, which stops it then."""
    command = [sys.executable, "-m", "ccl_bench.leaderboard.publishing.beside"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603  own module
    assert process.stdin is not None  # noqa: S101  it is a pipe
    with process.stdin, contextlib.suppress(BrokenPipeError):
        process.stdin.write(place)
    return process


def main() -> None:
    """Work where stdin says."""
    from ccl_bench.leaderboard.publishing.worker import Worker
    from ccl_bench.leaderboard.store import open_store

    place = msgspec.json.decode(sys.stdin.buffer.read(), type=_Place)
    Worker(open_store(Path(place.data), place.database)).run(parent=place.parent)


if __name__ == "__main__":
    main()
