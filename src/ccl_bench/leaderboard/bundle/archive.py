"""The archive itself, written: a tar of plain files inside gzip, with the same bytes for the same content."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import igzip

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.limits import RUN, unsafe
from ccl_bench.leaderboard.store.bundle import FILES, PROVENANCE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ccl_bench.engine import Progress

MEDIA_TYPE = "application/gzip"
_LEVEL = 1
"""Traces are packed already; packing them harder takes time and gains nothing."""


def write_archive(
    target: Path, folder: Path, run_files: Mapping[str, Path], *, told: Progress | None = None
) -> None:
    """Write the files of a bundle, and those of the run below `run/`, into one archive.

    `told` is called with the number of files that are in it and their total.
    """
    named = [(name, folder / name) for name in _in_order(folder)]
    named += [(f"{RUN}/{name}", run_files[name]) for name in sorted(run_files)]
    with (
        target.open("wb") as raw,
        _packing(raw) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for done, (name, path) in enumerate(named, start=1):
            _add(archive, name, path)
            if told:
                told(done, len(named))


def _in_order(folder: Path) -> list[str]:
    """Return the bundle's files, first the one that says what the others are."""
    return sorted((name for name in FILES if (folder / name).exists()), key=lambda n: (n != PROVENANCE, n))


def _packing(raw: BinaryIO) -> BinaryIO:
    packed = igzip.IGzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0)  # type: ignore[no-untyped-call]
    return cast("BinaryIO", packed)


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file with its name and content and nothing else that the system knows of it."""
    if problem := unsafe(name):
        raise InputError(
            f"cannot be put into a bundle: its name {problem}",
            where=name,
            fix="rename the file, or leave traces out",
        )
    info = tarfile.TarInfo(name)
    try:
        info.size = path.stat().st_size
        with path.open("rb") as stream:
            archive.addfile(info, stream)
    except ValueError as error:
        fix = "put the traces into object storage: --traces s3://bucket/folder"
        raise InputError(f"cannot be put into a bundle: {error}", where=name, fix=fix) from error
    except OSError as error:
        raise storage.unreadable(path, error) from error
