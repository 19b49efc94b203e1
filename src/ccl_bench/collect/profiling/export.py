"""Export the Kineto trace of one rank: complete, compressed where asked, few ranks of a node at a time."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS_PER_NODE = 4
"""Ranks of a node that write at once by default."""


@contextlib.contextmanager
def write_slot(local_rank: int, writers: int) -> Iterator[None]:
    """Hold one of the write slots of a node; the system frees it when a process dies.

    If no slot can be held, as with a read-only temporary folder, every rank writes at once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            held = stack.enter_context(_slot_file(local_rank % writers))
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _slot_file(number: int) -> IO[str]:
    """Open the lock file of a slot, in a folder that only this user can write."""
    folder = Path(tempfile.gettempdir()) / f"ccl-bench-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(folder)
    return (folder / str(number)).open("w")


_CHUNK_BYTES = 1 << 20
_GZIP_LEVEL = 1
"""Compression level: on traces level 9 takes five times as long and saves a fifth of the size."""


def export_trace(profiler: Any, file: Path, *, compress: bool, cut_step: int | None) -> str:
    """Write the trace of a profiler, and return what is wrong with the file, if anything.

    `cut_step` is the number of a step that the loop did not finish.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(file))
    if not _is_complete(file):
        return f"the trace is incomplete: its disk has {_free_space(file)} free"
    if cut_step is not None:
        _rename_step(file, cut_step)
    return _compress(file) if compress else ""


def _is_complete(file: Path) -> bool:
    """Whether a file ends as JSON does; the profiler reports no error when the disk is full."""
    if not file.exists():
        return False
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 64))
        return stream.read().rstrip().endswith(b"}")


def _free_space(file: Path) -> str:
    return f"{shutil.disk_usage(file.parent).free / 1e6:.0f} MB"


def _rename_step(file: Path, step: int) -> None:
    """Remove the number from the range of an unfinished step: its length is not that of a step."""
    before, after = b'"ProfilerStep#%d"' % step, b'"unfinished ProfilerStep"'
    with _temporary_file(file) as changed:
        with file.open("rb") as source, changed.open("wb") as target:
            for piece in _replaced(source, before, after):
                target.write(piece)
        changed.replace(file)


def _replaced(source: BinaryIO, before: bytes, after: bytes) -> Iterator[bytes]:
    """Yield the content of a stream with one text replaced, even across two chunks."""
    rest = b""
    while chunk := source.read(_CHUNK_BYTES):
        text = (rest + chunk).replace(before, after)
        keep = len(before) - 1
        yield text[:-keep]
        rest = text[-keep:]
    yield rest


def _compress(file: Path) -> str:
    """Compress a trace; return why it stays uncompressed, if it does."""
    try:
        with _temporary_file(file) as packed:
            with file.open("rb") as source, gzip.open(packed, "wb", compresslevel=_GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            packed.replace(file.with_name(f"{file.name}.gz"))
    except OSError as error:
        return f"the trace is not compressed: {error.strerror}"
    file.unlink()
    return ""


@contextlib.contextmanager
def _temporary_file(file: Path) -> Iterator[Path]:
    """Yield a hidden path beside this one, and remove it afterwards unless it was renamed."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
