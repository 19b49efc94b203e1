"""The content of one trace after reading: its tables, in memory or on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ccl_bench.base.findings import Finding

LARGE_ROWS = 1 << 20
"""Rows from which on a kept table is not held: about 70 MB of a Kineto trace."""

FORGOTTEN_S = 2 * 86_400
"""Age after which a scratch folder belongs to no process: none works on one trace for two days."""


class Scratch:
    """A temporary folder that is removed when nothing refers to this object."""

    def __init__(self, place: Path | None = None) -> None:
        self.path = storage.temporary_folder(place)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A table in a Parquet file."""

    path: Path
    height: int
    folder: Scratch | None = None
    """What the file goes with, where it is no part of the cache."""

    def frame(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table, or some of its columns.

        Raises InputError if the file is damaged; its folder is removed then, so that it is made anew.
        """
        try:
            names = None if columns is None else list(columns)
            table = pl.read_parquet(self.path, columns=names, glob=False, memory_map=False)
            if table.height != self.height:
                raise ValueError("other rows than were kept")
        except (Exception, pl.exceptions.PanicException) as error:  # damaged bytes may raise anything
            shutil.rmtree(self.path.parent, ignore_errors=True)
            fix = "run the command again: the trace is read anew"
            message = f"the kept table is damaged: {error}"
            raise InputError(message, where=str(self.path), fix=fix) from error
        return table

    def moved(self, path: Path) -> None:
        """Put the file at `path` too, without copying it where the file system allows."""
        try:
            os.link(self.path, path)
        except OSError:
            shutil.copyfile(self.path, path)


def scratch_folder() -> Scratch:
    """Return a temporary folder for a trace in use, next to the cache if possible."""
    place = storage.cache_directory() / "scratch"
    with contextlib.suppress(OSError):
        for folder in storage.private_folder(place).iterdir():
            with contextlib.suppress(OSError):
                # What a killed process left behind: nothing has written to it for long, or its clock was
                # ahead of ours by as much.
                if abs(time.time() - folder.stat().st_mtime) > FORGOTTEN_S:
                    shutil.rmtree(folder, ignore_errors=True)
        return Scratch(place)
    return Scratch()


def disk_errors() -> tuple[type[Exception], ...]:
    """Return the errors of writing to a disk that is full or may not be written to."""
    return (OSError, pl.exceptions.PolarsError)


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a large table as the cache keeps it."""
    table.write_parquet(path, compression="lz4", statistics=False)


@dataclass(slots=True)
class TraceContent:
    """One trace file as tables."""

    tables: Mapping[str, pl.DataFrame | OnDisk] = field(default_factory=dict)
    """Raw tables by name; one that the format does not know is absent, not empty."""
    rank: int | None = None
    """The rank that the file says it is from."""
    world_size: int | None = None
    """The number of ranks that the file says the job had."""
    findings: list[Finding] = field(default_factory=list)
    """What was wrong with the file."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Versions and names that the file records, such as `nccl_version`."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table called `name`, or some of its columns; empty if the format has none."""
        table = self.tables.get(name)
        if isinstance(table, OnDisk):
            return table.frame(columns)
        rows = TABLES[name].empty() if table is None else table
        return rows if columns is None else rows[list(columns)]

    def height(self, name: str) -> int:
        """Return the number of rows of a table."""
        table = self.tables.get(name)
        return 0 if table is None else table.height
