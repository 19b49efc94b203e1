"""The archive of a bundle: a tar of plain files inside gzip, with the same bytes for the same content.

The reader trusts nothing in an archive. It takes only plain files under known names, and refuses links,
devices, folders, extended headers, sparse files and whatever exceeds the limits. It holds no file in memory,
and a file takes no disk before its space was claimed.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import igzip
from isal.igzip_lib import IsalError

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import PROVENANCE, RUN_FOLDER, SENT, Limits, name_problem
from ccl_bench.storage.gzip_file import MOST_RATIO, most_inflated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import BufferedReader
    from pathlib import Path

    from _typeshed import WriteableBuffer

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


PATIENCE_S = 300.0
"""Time to unpack an archive: 10,000 small files take 2 s of a processor, and a server has much else to do."""
MIN_BYTES_PER_S = 16 << 20
"""Content that adds a second to it: four archives at once share a disk that writes 64 MiB/s."""


def unpack(archive: Path, folder: Path, limits: Limits, claim: Callable[[int], None]) -> UnpackedBundle:
    """Unpack an archive below a folder; raise InputError if anything in it is invalid.

    `claim` is called with the bytes that each file will take on the disk, before it is made, and may refuse
    them. Nothing is flushed to the disk.
    """
    unpacked = UnpackedBundle(folder / "bundle", folder / RUN_FOLDER)
    for place in (unpacked.bundle, unpacked.run):
        place.mkdir()
    room, seen, folders = limits.unpacked_bytes, 0, {".", RUN_FOLDER}
    with archive.open("rb") as raw:
        content = _Content(raw)
        for info in _file_headers(content):
            room -= info.size
            if room < 0:
                raise _refusal(f"holds more than {limits.unpacked_bytes:,} bytes when unpacked")
            if info.size > limits.of(info.name):
                raise _refusal(f"holds {info.name[:100]!r} of more than {limits.of(info.name):,} bytes")
            path = _place(info.name, unpacked)
            # A name of a few bytes may stand for many folders, each of which takes a block.
            new_folders = {str(above) for above in PurePosixPath(info.name).parents} - folders
            folders |= new_folders
            seen += 1 + len(new_folders)
            if seen > limits.files:
                raise _refusal(f"holds more than {limits.files:,} files and folders")
            claim(storage.stored_bytes(info.size) + len(new_folders) * storage.stored_bytes(1))
            digest = _write_file(content, info, path)
            if info.name not in SENT:
                unpacked.sha256[info.name.removeprefix(f"{RUN_FOLDER}/")] = digest
    return unpacked


def _refusal(what: str) -> InputError:
    return InputError(what, where="the archive", fix=PUBLISH_FIX)


class _TimedFile(io.RawIOBase):
    """An archive that is read within a time; millions of empty members take some and have no content."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw, self.allowed_s = cast("BufferedReader", raw), PATIENCE_S
        self._start = time.monotonic()

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer, and return the number of bytes."""
        if time.monotonic() - self._start > self.allowed_s:
            message = f"takes more than {self.allowed_s:,.0f} s to unpack"
            raise InputError(message, where="the archive", fix="send it again when the server is less busy")
        return self.raw.readinto(buffer)


class _Content:
    """What an archive decompresses to, within a ratio and a time."""

    def __init__(self, raw: BinaryIO) -> None:
        self._file, self._returned_bytes = _TimedFile(raw), 0
        self._stream = igzip.IGzipFile(fileobj=cast("BinaryIO", self._file), mode="rb")  # type: ignore[no-untyped-call]

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        try:
            block: bytes = self._stream.read(size)
        except _DAMAGE as error:
            raise _refusal(f"is damaged, or not a gzip-compressed tar archive: {error}") from error
        self._returned_bytes += len(block)
        self._file.allowed_s += len(block) / MIN_BYTES_PER_S
        if self._returned_bytes > most_inflated(self._file.raw.tell()):
            raise _refusal(f"decompresses to more than {MOST_RATIO} times its size, more than any trace")
        return block

    def read_exactly(self, size: int) -> bytes:
        """Return the next `size` bytes; raise InputError if the archive ends before."""
        content = bytearray()
        while len(content) < size:
            block = self.read(size - len(content))
            if not block:
                raise _refusal("ends too early: it was truncated in transfer")
            content += block
        return bytes(content)


def _file_headers(content: _Content) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of files; the caller reads each file's bytes before the next."""
    while (block := content.read_exactly(_TAR_BLOCK)).strip(b"\0"):
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
        block = content.read(_TAR_BLOCK)
        if not block:
            return
        if block.strip(b"\0"):
            break
    raise _refusal("has data after its end")


def _place(name: str, unpacked: UnpackedBundle) -> Path:
    """Return the path to which a file of this name is written."""
    if name in SENT:
        return unpacked.bundle / name
    below = name.removeprefix(f"{RUN_FOLDER}/")
    if below != name and not (problem := name_problem(below)):
        return unpacked.run / below
    why = problem if below != name else "is not allowed in a bundle"
    raise _refusal(f"holds a file whose name {why}: {name[:100]!r}")


def _write_file(content: _Content, info: tarfile.TarInfo, path: Path) -> str:
    """Write a new file and return its SHA-256."""
    digest, left = hashlib.sha256(), info.size
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        raise _refusal(f"holds {info.name[:100]!r} twice, or as file and folder") from error
    with target:
        storage.reserve(target, info.size)
        while left:
            block = content.read_exactly(min(left, _BLOCK_BYTES))
            target.write(block)
            digest.update(block)
            left -= len(block)
    if content.read_exactly(-info.size % _TAR_BLOCK).strip(b"\0"):
        raise _refusal("is damaged: there is data between two files")
    return digest.hexdigest()
