"""The archive, unpacked by a reader that trusts nothing in it.

Only plain files under known names are taken. Links, devices, folders, extended headers and sparse files
are refused, and so is whatever grows beyond the limits: nothing is held in memory, and nothing is written
that would exceed them.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import igzip
from isal.igzip_lib import IsalError

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.limits import RUN, Limits, unsafe
from ccl_bench.leaderboard.store.bundle import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UNIT = tarfile.BLOCKSIZE
_BLOCK_BYTES = 1 << 20
_DAMAGE = (EOFError, OSError, ValueError, zlib.error, cast("type[Exception]", IsalError))
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KINDS = {
    tarfile.DIRTYPE: "a folder",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
MAKE_IT = "make it with ccl-bench publish"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was in an archive, as it lies on disk."""

    bundle: Path
    """Folder of the card, results, provenance and report."""
    run: Path
    """Folder of the run's own files."""
    sha256: dict[str, str] = field(default_factory=dict)
    """File below the run → hash of what was written."""


def unpack(archive: Path, folder: Path, limits: Limits) -> Unpacked:
    """Unpack an archive below a folder; raise InputError where anything in it is not as it should be."""
    found = Unpacked(folder / "bundle", folder / RUN)
    for place in (found.bundle, found.run):
        place.mkdir()
    with archive.open("rb") as raw, _inflated(raw) as stream:
        room = limits.unpacked_bytes
        for seen, info in enumerate(_members(stream), start=1):
            room -= info.size
            if seen > limits.files:
                raise _refusal(f"holds more than {limits.files:,} files")
            if room < 0:
                raise _refusal(f"holds more than {limits.unpacked_bytes:,} bytes when unpacked")
            _take(stream, info, found, limits)
    for place in (found.bundle, found.run):
        _sync(place)
    return found


def _inflated(raw: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", igzip.IGzipFile(fileobj=raw, mode="rb"))  # type: ignore[no-untyped-call]


def _refusal(what: str) -> InputError:
    return InputError(what, where="the archive", fix=MAKE_IT)


def _members(stream: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of files; the caller reads each file's bytes before the next."""
    while (block := _exactly(stream, _UNIT)).strip(b"\0"):
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise _refusal(f"is damaged, or no tar inside gzip: {error}") from error
        if info.type not in _PLAIN or info.size < 0:
            kind = _KINDS.get(info.type, "an extended header")
            raise _refusal(f"holds {kind} ({info.name[:100]!r}), and only plain files are taken")
        yield info
    _nothing_follows(stream)


def _nothing_follows(stream: BinaryIO) -> None:
    """Read what follows the first block of zeros: a second one, and zeros up to a whole record."""
    for _ in range(tarfile.RECORDSIZE // _UNIT + 1):
        block = _read(stream, _UNIT)
        if not block:
            return
        if block.strip(b"\0"):
            break
    raise _refusal("goes on behind its end")


def _take(stream: BinaryIO, info: tarfile.TarInfo, found: Unpacked, limits: Limits) -> None:
    """Write one file to where its name says."""
    if info.size > limits.of(info.name):
        raise _refusal(f"holds {info.name[:100]!r} of more than {limits.of(info.name):,} bytes")
    below = info.name.removeprefix(f"{RUN}/")
    if info.name in FILES:
        _write(stream, info, found.bundle / info.name)
    elif below != info.name and not (problem := unsafe(below)):
        found.sha256[below] = _write(stream, info, found.run / below)
    else:
        why = problem if below != info.name else "is none that a bundle holds"
        raise _refusal(f"holds a file whose name {why}: {info.name[:100]!r}")
    padding = -info.size % _UNIT
    if _exactly(stream, padding).strip(b"\0"):
        raise _refusal("is damaged: there is something between two files")


def _write(stream: BinaryIO, info: tarfile.TarInfo, path: Path) -> str:
    """Write a file that is not there yet, and return its SHA-256."""
    digest, left = hashlib.sha256(), info.size
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        raise _refusal(f"holds {info.name[:100]!r} twice, or as file and folder") from error
    with target:
        while left:
            block = _exactly(stream, min(left, _BLOCK_BYTES))
            target.write(block)
            digest.update(block)
            left -= len(block)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _exactly(stream: BinaryIO, size: int) -> bytes:
    """Return the next `size` bytes; raise InputError where the archive ends before."""
    found = bytearray()
    while len(found) < size:
        block = _read(stream, size - len(found))
        if not block:
            raise _refusal("ends too early: it was cut off on its way")
        found += block
    return bytes(found)


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        return stream.read(size)
    except _DAMAGE as error:
        raise _refusal(f"is damaged, or no tar inside gzip: {error}") from error


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk before anything rests on them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
