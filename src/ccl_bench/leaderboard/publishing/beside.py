"""Workers beside a server: processes of their own that end with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 10.0
"""Time that a worker has to stop."""


class _Place(msgspec.Struct, frozen=True):
    """Where a worker works; told on its stdin, since an address may hold a password."""

    data: str
    database: str | None
    parent: int


@contextlib.contextmanager
def workers_beside(data: Path, database: str | None, count: int) -> Iterator[None]:
    """Have some workers run as long as the context does."""
    place = msgspec.json.encode(_Place(str(data), database, os.getpid()))
    command = [sys.executable, "-m", "ccl_bench.leaderboard.publishing.beside"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603  this program's own module
            started.append(process)
            assert process.stdin is not None  # noqa: S101  it is a pipe
            process.stdin.write(place)
            process.stdin.close()
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            process.kill()
            process.wait()


def main() -> None:
    """Work where stdin says."""
    from ccl_bench.leaderboard.publishing.worker import Worker
    from ccl_bench.leaderboard.store import open_store

    place = msgspec.json.decode(sys.stdin.buffer.read(), type=_Place)
    Worker(open_store(Path(place.data), place.database)).run(parent=place.parent)


if __name__ == "__main__":
    main()
