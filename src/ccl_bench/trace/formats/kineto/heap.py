"""The rows of one file until all of them are there: in memory, those of a large file mostly on disk."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace import ondisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.trace.ondisk import Scratch

MOST_ROWS = 1 << 21
"""Rows that are held in memory; with those of the next piece they take some 250 MB."""


class Heap:
    """Rows of several kinds, each in the order in which they came."""

    def __init__(self) -> None:
        self._held: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._files: dict[str, list[Path]] = defaultdict(list)
        self._rows = 0
        self.folder: Scratch | None = None
        """Where rows lie, if some do."""

    def add(self, kind: str, rows: pl.DataFrame) -> None:
        """Add rows of one kind."""
        self._held[kind].append(rows)
        self._rows += rows.height

    def relieve(self, alike: Callable[[list[pl.DataFrame]], list[pl.DataFrame]]) -> None:
        """Put the rows on disk if they are many; they stay where they are if it is full.

        `alike` makes few frames of many.
        """
        if self._rows <= MOST_ROWS:
            return
        self._rows = 0
        with contextlib.suppress(*ondisk.no_room()):
            self.folder = self.folder or ondisk.scratch()
            for kind in self._held:
                self._held[kind] = alike(self._held[kind])
                while self._held[kind]:
                    file = self.folder.path / f"{kind} {len(self._files[kind])}.arrow"
                    self._held[kind][0].write_ipc(file, compression="lz4")
                    self._files[kind].append(file)
                    del self._held[kind][0]

    def take(self, kind: str, columns: list[str] | None = None) -> list[pl.DataFrame]:
        """Return the rows of one kind, which is then empty unless only some of their columns are wanted."""
        files, held = self._files[kind], self._held[kind]
        read = [pl.read_ipc(file, columns=columns) for file in files]
        if columns is not None:
            return [*read, *(frame.select(columns) for frame in held)]
        for file in files:
            file.unlink(missing_ok=True)
        self._files[kind], self._held[kind] = [], []
        return [*read, *held]
