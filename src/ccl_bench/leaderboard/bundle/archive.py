"""The archive of a bundle: a tar of plain files inside gzip, with the same bytes for the same content.

The reader trusts nothing in an archive. It takes only plain files under known names, and refuses links,
devices, folders, extended headers, sparse files and whatever exceeds the limits. It holds no file in memory.
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

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import PROVENANCE, RUN_FOLDER, SENT, Limits, name_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ccl_bench.engine import Progress

MEDIA_TYPE = "application/gzip"


def write_archive(
    target: Path, folder: Path, run_files: Mapping[str, Path], *, progress: Progress | None = None
) -> None:
    """Write the files of a bundle, and those of the run below `run/`, into one archive.

    `progress` is called with the number of packed files and their total.
    """
    # The provenance comes first: it lists the others.
    names = sorted((name for name in SENT if (folder / name).exists()), key=lambda n: (n != PROVENANCE, n))
    files = [(name, folder / name) for name in names]
    files += [(f"{RUN_FOLDER}/{name}", run_files[name]) for name in sorted(run_files)]
    with (
        target.open("wb") as raw,
        # Traces are already compressed; a higher level costs time and gains nothing.
        igzip.IGzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,  # type: ignore[no-untyped-call]
        tarfile.open(fileobj=cast("BinaryIO", packed), mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for done, (name, path) in enumerate(files, start=1):
            if problem := name_problem(name):
                raise InputError(
                    f"cannot be put into a bundle: its name {problem}",
                    where=name,
                    fix="rename the file, or leave traces out",
                )
            info = tarfile.TarInfo(name)  # without owner, time and permissions
            try:
                info.size = path.stat().st_size
                with storage.open_raw(path) as stream:
                    archive.addfile(info, stream)
            except ValueError as error:
                fix = "put the traces into object storage: --traces s3://bucket/folder"
                raise InputError(f"cannot be put into a bundle: {error}", where=name, fix=fix) from error
            except OSError as error:
                raise storage.unreadable(path, error) from error
            if progress:
                progress(done, len(files))


_TAR_BLOCK = tarfile.BLOCKSIZE
_BLOCK_BYTES = 1 << 20
_DAMAGE = (EOFError, OSError, OverflowError, ValueError, zlib.error, cast("type[Exception]", IsalError))
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
PUBLISH_FIX = "make it with ccl-bench publish"


@dataclass(frozen=True, slots=True)
class UnpackedBundle:
    """The unpacked contents of an archive on disk."""

    bundle: Path
    """Folder of the card, results, provenance and report."""
    run: Path
    """Folder of the run's own files."""
    sha256: dict[str, str] = field(default_factory=dict)
    """File below the run → hash of what was written."""


def unpack(archive: Path, folder: Path, limits: Limits) -> UnpackedBundle:
    """Unpack an archive below a folder; raise InputError if anything in it is invalid."""
    unpacked = UnpackedBundle(folder / "bundle", folder / RUN_FOLDER)
    for place in (unpacked.bundle, unpacked.run):
        place.mkdir()
    with (
        archive.open("rb") as raw,
        cast("BinaryIO", igzip.IGzipFile(fileobj=raw, mode="rb")) as stream,  # type: ignore[no-untyped-call]
    ):
        room = limits.unpacked_bytes
        for seen, info in enumerate(_file_headers(stream), start=1):
            room -= info.size
            if seen > limits.files:
                raise _refusal(f"holds more than {limits.files:,} files")
            if room < 0:
                raise _refusal(f"holds more than {limits.unpacked_bytes:,} bytes when unpacked")
            _extract_file(stream, info, unpacked, limits)
    for place in (unpacked.bundle, unpacked.run):
        # The names are on disk before anything depends on them.
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return unpacked


def _refusal(what: str) -> InputError:
    return InputError(what, where="the archive", fix=PUBLISH_FIX)


def _file_headers(stream: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of files; the caller reads each file's bytes before the next."""
    while (block := _read_exactly(stream, _TAR_BLOCK)).strip(b"\0"):
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise _refusal(f"is damaged, or not a gzip-compressed tar archive: {error}") from error
        if info.type not in _PLAIN or info.size < 0:
            kind = _KINDS.get(info.type, "an extended header")
            raise _refusal(f"holds {kind} ({info.name[:100]!r}), but only plain files are accepted")
        yield info
    # An archive ends with a second block of zeros, and zeros up to a whole record.
    for _ in range(tarfile.RECORDSIZE // _TAR_BLOCK + 1):
        block = _read(stream, _TAR_BLOCK)
        if not block:
            return
        if block.strip(b"\0"):
            break
    raise _refusal("has data after its end")


def _extract_file(stream: BinaryIO, info: tarfile.TarInfo, unpacked: UnpackedBundle, limits: Limits) -> None:
    """Write one file to the path that its name states."""
    if info.size > limits.of(info.name):
        raise _refusal(f"holds {info.name[:100]!r} of more than {limits.of(info.name):,} bytes")
    below = info.name.removeprefix(f"{RUN_FOLDER}/")
    if info.name in SENT:
        _write_file(stream, info, unpacked.bundle / info.name)
    elif below != info.name and not (problem := name_problem(below)):
        unpacked.sha256[below] = _write_file(stream, info, unpacked.run / below)
    else:
        why = problem if below != info.name else "is not allowed in a bundle"
        raise _refusal(f"holds a file whose name {why}: {info.name[:100]!r}")
    padding = -info.size % _TAR_BLOCK
    if _read_exactly(stream, padding).strip(b"\0"):
        raise _refusal("is damaged: there is data between two files")


def _write_file(stream: BinaryIO, info: tarfile.TarInfo, path: Path) -> str:
    """Write a new file and return its SHA-256."""
    digest, left = hashlib.sha256(), info.size
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        raise _refusal(f"holds {info.name[:100]!r} twice, or as file and folder") from error
    with target:
        while left:
            block = _read_exactly(stream, min(left, _BLOCK_BYTES))
            target.write(block)
            digest.update(block)
            left -= len(block)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    """Return the next `size` bytes; raise InputError if the archive ends before."""
    content = bytearray()
    while len(content) < size:
        block = _read(stream, size - len(content))
        if not block:
            raise _refusal("ends too early: it was truncated in transfer")
        content += block
    return bytes(content)


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        return stream.read(size)
    except _DAMAGE as error:
        raise _refusal(f"is damaged, or not a gzip-compressed tar archive: {error}") from error
