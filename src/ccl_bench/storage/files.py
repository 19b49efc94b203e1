"""Files by path or address: opened decompressed, hashed, replaced at once; small texts."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import operator
import os
import stat
import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ccl_bench.base.errors import InputError
from ccl_bench.storage.disk import sync
from ccl_bench.storage.remote import fetch, first_bytes, is_remote, remote_errors, remote_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from typing import BinaryIO


GZIP_MAGIC = b"\x1f\x8b"
SQLITE_MAGIC = b"SQLite format 3\0"
ROLLBACK, LOG = "-journal", "-wal"
"""What SQLite appends to the name of a database for its journals."""

_HASHED_BYTES = 4 << 20
_LEAST_HASHED_BYTES = 64 << 10
"""Bytes of the buffer for a small file: to clear a large one takes longer than to hash the file."""
_ZEROS = bytes(_HASHED_BYTES)
_PIECE_BYTES = 16 << 20

CACHE_VARIABLE = "CCL_BENCH_CACHE"

MOST_ZEROS = 64 << 20
"""Zero bytes in a row that no trace holds: a file with more was reserved or copied, and not filled."""

DAMAGED = (EOFError, OSError, ValueError)
"""What reading raises where a compressed file is cut or damaged."""


def to_path(text: str | Path) -> Path:
    """Return a path for a local name or a URL such as `s3://bucket/run`.

    Remote addresses need the extra `remote`; what is missing is named in the error.
    """
    name = str(text)
    return remote_path(name) if "://" in name else Path(name).expanduser()


def _gzip(raw: BinaryIO) -> BinaryIO:
    from ccl_bench.storage.gzip_file import GzipFile  # isal is not needed for what is not compressed

    return cast("BinaryIO", GzipFile(raw))


_OF_THE_KERNEL = (Path("/proc"), Path("/sys"))
"""Folders of files that look regular: reading one may wait, never end, or show another process."""

_FLAGS = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
_AT_ONCE = functools.reduce(operator.or_, (getattr(os, name, 0) for name in _FLAGS))
"""Flags of opening, of those that the system has: Windows has the last two."""


def is_of_the_kernel(path: Path) -> bool:
    """Whether a local path leads, after its links, to a view of the kernel such as `/proc`."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(folder) for folder in _OF_THE_KERNEL)


def open_raw(path: Path) -> BinaryIO:
    """Open a file for reading as it is stored, here or behind an address.

    Raises OSError for anything but a regular file, before it is opened: a device, a pipe and a view of the
    kernel may wait, never end, or act.
    """
    if is_remote(path):
        return path.open("rb")
    if is_of_the_kernel(path):
        raise OSError(errno.EINVAL, "it is a view of the operating system's kernel, not a file", str(path))
    _refuse_special(path, path.stat())
    descriptor = os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        _refuse_special(path, os.fstat(descriptor))  # another may have come in its place
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def _refuse_special(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, not a file", str(path))


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed when its first bytes are those of gzip."""
    with contextlib.ExitStack() as stack:
        try:
            raw = stack.enter_context(open_raw(path))
            magic = raw.read(2)
            raw.seek(0)
        except OSError as error:
            raise unreadable(path, error) from error
        yield stack.enter_context(_gzip(raw)) if magic == GZIP_MAGIC else raw


def unreadable(path: Path, error: OSError) -> InputError:
    """Return the error for a file that the system refuses to open."""
    reason = error.strerror or str(error)
    return InputError(f"cannot be read: {reason}", where=str(path), fix="check the path and its permissions")


def read_head(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a file after decompression, fewer where it is damaged."""
    head = b""
    with contextlib.ExitStack() as stack:
        if is_remote(path):
            raw = BytesIO(first_bytes(path, size))
            stream = _gzip(raw) if raw.getvalue().startswith(GZIP_MAGIC) else raw
        else:
            stream = stack.enter_context(open_file(path))
        with contextlib.suppress(*DAMAGED):
            while len(head) < size and (block := stream.read(size - len(head))):
                head += block
    return head


def read_whole(stream: BinaryIO, file: str, largest_bytes: int, fix: str) -> bytes:
    """Return all of an open file, asked for in pieces, so that no more is reserved than there is.

    Raises InputError if it is damaged or larger than `largest_bytes`; `fix` says how to get a smaller one.
    """
    content = bytearray()
    try:
        while len(content) <= largest_bytes and (piece := stream.read(_PIECE_BYTES)):
            content += piece
    except DAMAGED as error:
        message = f"cannot be read to its end: {error}"
        raise InputError(message, where=file, fix="copy it again and compare checksums") from error
    if len(content) > largest_bytes:
        raise InputError(f"is larger than {largest_bytes / (1 << 30):.3g} GiB", where=file, fix=fix)
    return bytes(content)


def sha256(path: Path, *more: Path) -> str:
    """Return the SHA-256 of files as they lie on disk, as of one file, in hexadecimal.

    Large blocks let several threads hash at once: each block is one turn of the interpreter.

    Raises InputError if more than `MOST_ZEROS` bytes in a row are zero.
    """
    expected = _HASHED_BYTES if is_remote(path) else path.stat().st_size
    buffer = bytearray(min(_HASHED_BYTES, max(expected, _LEAST_HASHED_BYTES)))
    digest, view = hashlib.sha256(), memoryview(buffer)
    for each in (path, *more):
        at = zeros = 0
        with open_raw(each) as stream:
            while size := cast("BufferedReader", stream).readinto(buffer):
                digest.update(view[:size])
                at += size
                zeros = zeros + size if buffer.startswith(_ZEROS) else 0
                if zeros > MOST_ZEROS:
                    raise unwritten(at - zeros, zeros, str(each))
    return digest.hexdigest()


def refuse_holes(path: Path) -> None:
    """Raise InputError if a file has a hole of more than `MOST_ZEROS` bytes, which takes no reading.

    Where the file system does not say where holes are, it counts as without.
    """
    if is_remote(path):
        return
    with open_raw(path) as stream:
        end, size = 0, path.stat().st_size
        while end < size:
            hole = _next_extent(stream, end, os.SEEK_HOLE, otherwise=size)
            end = _next_extent(stream, hole, os.SEEK_DATA, otherwise=size)
            if end - hole > MOST_ZEROS:
                raise unwritten(hole, end - hole, str(path))


def _next_extent(stream: BinaryIO, start: int, kind: int, *, otherwise: int) -> int:
    """Return the start of the next hole or data from `start` on; `otherwise` if there is none."""
    try:
        return os.lseek(stream.fileno(), start, kind)
    except OSError:
        return otherwise


def unwritten(start: int, zeros: int, where: str) -> InputError:
    """Return the error for a file with so many zero bytes from byte `start` on."""
    message = f"holds only zeros in {zeros >> 20} MiB from byte {start:,} on: it is incomplete"
    return InputError(message, where=where, fix="copy it again and compare checksums")


def cache_directory() -> Path:
    """Return the folder that keeps tables between commands: $CCL_BENCH_CACHE, else the user's cache."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ccl-bench"


@contextlib.contextmanager
def write_atomically(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a temporary path to write to, and put it in place of `path` only when all went well.

    Only the owner can read the file, whatever the umask. A durable one is on the disk before it is in place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)  # the one that was asked for
        raise
    set_permissions(handle, 0o600)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def set_permissions(place: str | Path | int, permissions: int) -> None:
    """Give a file or folder permissions if it has others: the umask may take rights of the owner too.

    The sandbox of recomputation refuses to change any, and has a umask with which nothing is to be changed.
    Windows has none: folders of a user are closed to others by its own lists.
    """
    if os.name != "nt" and stat.S_IMODE(os.stat(place).st_mode) != permissions:  # noqa: PTH116  also of a descriptor
        os.chmod(place, permissions)  # noqa: PTH101  also of a descriptor


def walk(
    root: str | Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with the names of its folders and files, as `os.walk` does from the top.

    `os.walk` of Python 3.11 calls itself for every level, and ends with an error a thousand levels down.
    """
    pending = [os.fspath(root)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                is_folder = {entry.name: _is_folder(entry) for entry in entries}
        except OSError as error:
            if onerror:
                onerror(error)
            continue
        subfolders = [name for name, is_one in is_folder.items() if is_one]
        yield folder, subfolders, [name for name, is_one in is_folder.items() if not is_one]
        paths = [os.path.join(folder, name) for name in reversed(subfolders)]  # noqa: PTH118  many paths
        pending += [path for path in paths if not os.path.islink(path)]  # noqa: PTH114  many paths


def remove_folder(folder: Path) -> None:
    """Remove a folder of any depth and with any permissions; what the system refuses to remove stays.

    `shutil.rmtree` of Python 3.11 calls itself for every level, and leaves a folder that may not be read.
    Here each folder is moved to the top before it is emptied, so that no path gets long.
    """
    pending = [folder]
    while pending:
        place = pending.pop()
        content: list[os.DirEntry[str]] = []
        with contextlib.suppress(OSError):
            place.chmod(stat.S_IRWXU)
            with os.scandir(place) as entries:
                content = list(entries)
        for entry in content:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    Path(entry).chmod(stat.S_IRWXU)
                    pending.append(Path(entry).rename(tempfile.mkdtemp(dir=folder)))
                else:
                    os.unlink(entry)  # noqa: PTH108  many files
        with contextlib.suppress(OSError):
            place.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


Location = str | Path

MIB = 1 << 20


def read_text(name: Location, limit: int = MIB) -> str:
    """Return the text of a file of at most `limit` bytes, with damaged UTF-8 marked as U+FFFD."""
    path = to_path(name)
    try:
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(problem, where=str(name), fix="check the path")
        with open_raw(path) as stream:
            raw = stream.read(limit + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise InputError(f"is not a path: {error}", where=repr(name), fix="check the path") from error
    if len(raw) > limit:
        raise InputError(
            f"is larger than {limit / MIB:g} MiB",
            where=str(name),
            fix="check that this is the right file; files of this kind are small",
        )
    if b"\0" in raw:
        raise InputError("is a binary file, not text", where=str(name), fix="name a text file in UTF-8")
    return decode_text(raw)


def decode_text(raw: bytes | bytearray) -> str:
    """Return text in UTF-8 without its mark; what is no UTF-8 becomes U+FFFD.

    Python imports the codec `utf-8-sig` when it is first asked for, which fails after a change of user.
    """
    return raw.decode("utf-8", "replace").removeprefix("\ufeff")


def replace_text(target: Path, text: str) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file.

    Bytes of file names that are not UTF-8 are escaped.
    """
    replace_bytes(target, text.encode(errors="backslashreplace"))


def replace_bytes(target: Path, content: bytes) -> None:
    """Write beside the target and rename; a new file is readable for all, others keep their permissions."""
    target = target.resolve()
    with write_atomically(target) as temporary:
        temporary.write_bytes(content)
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file; an empty one where there is none."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def replace_object(target: Path, content: dict[str, Any]) -> None:
    """Write an indented JSON object as `replace_text` does."""
    replace_text(target, json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Give a local copy of a remote file, with its journals, fetched once; a local file is given as it is."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as folder:
        copy = Path(folder, path.name)
        with remote_errors(path):
            fetch(path, copy)
            is_database = read_head(copy, len(SQLITE_MAGIC)) == SQLITE_MAGIC
            for name in [path.name + ending for ending in (ROLLBACK, LOG)] if is_database else []:
                if (journal := path.with_name(name)).exists():
                    fetch(journal, copy.with_name(name))
        yield copy
