"""The SQLite export of a report: made once by the `nsys` on PATH, in the cache and not beside the report.

A report can be read by the version of `nsys` that recorded it and by later ones.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.trace.content import scratch_folder
from ccl_bench.trace.formats.nsys.json_lines import write_database
from ccl_bench.trace.formats.nsys.recognition import is_json_export, is_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

EXPORT_SECONDS = 3600.0
"""Longest time an export may take."""

_QUESTION_SECONDS = 60.0
_SAID_CHARACTERS = 300

INSTALLATION = "install Nsight Systems, on Debian: apt-get install nsight-systems (contrib and non-free)"

PAYLOADS = "--include-blobs"
"""Option of later versions that exports what NCCL says of each call."""


def convert(report: Path, output: Path, name: str) -> None:
    """Write the SQLite export of `report` to `output`; `name` names the report in messages.

    Raises InputError if there is no `nsys`, or where it cannot read the report.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        message = "is a report, which only nsys can read, but nsys is not on PATH"
        raise InputError(message, where=name, fix=f"{INSTALLATION}; or {_fix_elsewhere(name)}")
    options = [f"{PAYLOADS}=true"] if PAYLOADS in _output_of(nsys, "export", "--help") else []
    arguments = ["--quiet=true", "--type", "sqlite", *options, "-o", output.name, str(report.absolute())]
    status, output_text = _run([nsys, "export", *arguments], output.parent, EXPORT_SECONDS)
    if status == 0 and output.is_file():
        return
    timeout_message = f"it took longer than {EXPORT_SECONDS:.0f} s"
    why = timeout_message if status is None else _short(output_text) or f"exit status {status}"
    version = _short(_output_of(nsys, "--version")).removeprefix("NVIDIA Nsight Systems version ")
    raise InputError(
        f"nsys {version} cannot export it: {why}",
        where=name,
        fix=f"install the nsys that recorded it or a later one; or {_fix_elsewhere(name)}",
    )


def _fix_elsewhere(name: str) -> str:
    """Return the fix where this machine cannot export."""
    stem = name.removesuffix(".gz").rpartition(".")[0]
    command = shlex.join(["nsys", "export", "--type", "sqlite", "-o", f"{stem}.sqlite", name])
    return f"run this where it was recorded, and put the result next to it: {command}"


def _short(output: str) -> str:
    return " ".join(output.split())[:_SAID_CHARACTERS]


def _output_of(*command: str) -> str:
    return _run(command, None, _QUESTION_SECONDS)[1]


def _run(command: Sequence[str], folder: Path | None, seconds: float) -> tuple[int | None, str]:
    """Return exit status, None when it ran out of time, and the output of the command."""
    process = subprocess.Popen(  # noqa: S603 (no shell; the report's name is one argument)
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with process:
            if process.poll() is not None:
                pass
            elif hasattr(os, "killpg"):  # its child processes end with it
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    return process.returncode, output.decode("utf-8", errors="replace")


LAYOUT = 1
"""Increased when the same report would be exported another way."""

MOST_UNPACKED_BYTES = 64 << 30
"""A gzip file that holds more is refused."""

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 256 << 10


def export_of(path: Path, name: str = "") -> Path:
    """Return the SQLite export of a report or of its JSON; an export is its own, a packed one is unpacked.

    `name` names the file in messages. Raises InputError if no `nsys` is there, or where it
    cannot read the report.
    """
    name = name or str(path)
    head = storage.read_head(path, _HEAD_BYTES)
    is_converted, is_json = is_report(head), is_json_export(head)
    try:
        with storage.open_raw(path) as stream:
            is_packed = stream.read(len(storage.GZIP_MAGIC)) == storage.GZIP_MAGIC
        if not is_packed and not is_converted and not is_json:
            return path
        if is_packed and storage.journals_of(path.with_suffix("")):
            fix = "unpack it, and leave its journal beside it"
            raise InputError("is packed, and its journal is not", where=name, fix=fix)
        stat = path.stat()
    except OSError as error:
        raise storage.unreadable(path, error) from error
    # Another file of that name has another place.
    file = (LAYOUT, str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    key = hashlib.sha256(repr(file).encode()).hexdigest()[:32]
    place = storage.cache_directory() / "nsys" / key / "export.sqlite3"
    if place.is_file():
        return place
    with _folder_to_fill(place.parent) as folder:
        if is_json:
            write_database(path, folder / place.name, name)
            return place
        source = _unpacked(path, folder / "unpacked.nsys-rep", name) if is_packed else path
        if is_converted:
            convert(source, folder / "export.sqlite", name)
            source = folder / "export.sqlite"
        source.rename(folder / place.name)
        (folder / "unpacked.nsys-rep").unlink(missing_ok=True)
    return place


@contextmanager
def _folder_to_fill(place: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes `place` when all went well and goes away when not."""
    try:
        storage.private_folder(place.parent)
        scratch = scratch_folder()
        folder = scratch.path
    except OSError as error:
        raise _unwritable(place, error) from error
    try:
        yield folder
        storage.make_private(folder)
        if not place.is_dir():
            folder.rename(place)
    except OSError as error:
        if not place.is_dir():  # otherwise another process was faster
            raise _unwritable(place, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(place: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    fix = f"name a folder with free space in ${storage.CACHE_VARIABLE}"
    return InputError(f"cannot be written: {reason}", where=str(place), fix=fix)


def _unpacked(path: Path, copy: Path, name: str) -> Path:
    """Write the content of a gzip file to `copy`, up to the damage."""
    size = 0
    with storage.open_file(path) as stream, copy.open("wb") as output:
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except storage.DAMAGED:
                return copy
            if not block:
                return copy
            size += len(block)
            if size > MOST_UNPACKED_BYTES:
                message = f"unpacks to more than {MOST_UNPACKED_BYTES:,} bytes"
                raise InputError(message, where=name, fix="unpack it yourself if that is right")
            output.write(block)
