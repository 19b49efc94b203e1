"""Write what ranks recorded as Kineto files: rank by rank, a block at a time, memory flat."""

from __future__ import annotations

import gzip
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, cast

from ccl_bench.testing import kineto_header
from ccl_bench.testing.kineto_events import RankEvents
from ccl_bench.testing.kineto_filler import filler_blocks
from ccl_bench.testing.kineto_layout import Style

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ccl_bench.testing.timeline import Timeline

_BLOCK_EVENTS = 4096


def write_rank(
    made: Timeline, rank: int, path: Path, *, style: Style | None = None, filler_bytes: int = 0
) -> int:
    """Write one rank's file and return its size before compression, bytes; its process plays all its devices.

    `filler_bytes` adds operators on a thread of their own, without any work on the device, until
    the file has grown by so much: they change no answer.
    """
    style = style or Style()
    events = [RankEvents(made, rank + place, style) for place in range(style.devices_in_process)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as raw:
        if not style.compresses:
            return _write(raw, events, filler_bytes)
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
            return _write(cast("BinaryIO", packed), events, filler_bytes)


def _write(stream: BinaryIO, of_devices: list[RankEvents], filler_bytes: int) -> int:
    events = of_devices[0]
    style, separator = events.style, events.style.separator
    size = stream.write(kineto_header.opening(events.made, events.rank, style).encode())
    between = ""
    every = chain(events.metadata(), *(one.steps() for one in of_devices))
    for block in blocks(every, separator):
        size += stream.write((between + block).encode())
        between = separator
    if filler_bytes > 0:
        for block in filler_blocks(events, filler_bytes):
            size += stream.write((between + block).encode())
    return size + stream.write(kineto_header.closing(events.rank, style).encode())


def blocks(events: Iterable[str], separator: str) -> Iterator[str]:
    """Yield the events joined, a few thousand at a time."""
    remaining = iter(events)
    while block := separator.join(islice(remaining, _BLOCK_EVENTS)):
        yield block
