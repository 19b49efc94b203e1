"""Files of a run from object storage that the operator named, each only if it is the one published."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.publishing.recomputing import Interrupted
from ccl_bench.storage import remote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.leaderboard.publishing.settings import Settings
    from ccl_bench.leaderboard.store.bundle import BundleProvenance

_BLOCK_BYTES = 4 << 20
_SIDE_FILE_BYTES = 64 << 20
"""Largest file that is no trace, whose size a bundle does not say."""


def fetch(
    made: BundleProvenance, address: str, folder: Path, settings: Settings, may_go_on: Callable[[], bool]
) -> None:
    """Fetch the files of a run below an address; InputError where one is missing or another than claimed."""
    traces = {trace.file: (trace.sha256, trace.size) for trace in made.traces}
    others = {name: (digest, _SIDE_FILE_BYTES) for name, digest in made.files.items()}
    if sum(size for _, size in traces.values()) > settings.unpacked_bytes:
        raise InputError(f"the traces have more than {settings.unpacked_bytes:,} bytes", where=address)
    place = remote.remote_path(address)
    for name, (digest, size) in {**traces, **others}.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with remote.remote_errors(place):
            found = _copied(place / name, target, size, may_go_on)
        if found != digest:
            raise InputError("is another file than the one that was published", where=f"{address}/{name}")


def _copied(source: Path, target: Path, most: int, may_go_on: Callable[[], bool]) -> str:
    """Copy at most `most` bytes and return the hash of what was copied."""
    digest, left = hashlib.sha256(), most
    with source.open("rb") as stream, target.open("xb") as copy:
        while block := stream.read(min(_BLOCK_BYTES, left + 1)):
            left -= len(block)
            if left < 0:
                raise InputError("is larger than the one that was published", where=str(source))
            copy.write(block)
            digest.update(block)
            if not may_go_on():
                raise Interrupted("fetching was interrupted")
    return digest.hexdigest()
