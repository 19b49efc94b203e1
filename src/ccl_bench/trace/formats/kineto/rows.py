"""The rows of a Kineto file while it is read: in C where that is compiled, else by the decoder.

Both take the same text and fill the same columns. What C refuses, because something in it is unusual, the
decoder takes.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace import content, memory
from ccl_bench.trace.formats.kineto import communication, tables
from ccl_bench.trace.formats.kineto.decoding import decoded, decoder_for
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    COMPLETE,
    HEAD,
    HEADS,
    ROWS,
    TAIL,
    TAILS,
    UNSORTED,
    UNUSED_CATEGORIES,
)
from ccl_bench.trace.values import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.trace.content import Scratch
    from ccl_bench.trace.formats.kineto.decoding import Decoder
    from ccl_bench.trace.formats.kineto.events import Event
    from ccl_bench.trace.formats.kineto.native.reader import NativeRows

MOST_ROWS = 1 << 21
"""Rows that are held in memory; with those of the next piece they take some 250 MB."""


class _Spool:
    """Rows of several kinds, each in the order in which they came."""

    def __init__(self) -> None:
        self._frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._files: dict[str, list[Path]] = defaultdict(list)
        self._rows = 0
        self.folder: Scratch | None = None
        """Where rows lie, if some do."""

    def add(self, kind: str, rows: pl.DataFrame) -> None:
        """Add rows of one kind; InputError if they are more than memory may hold."""
        memory.hold_rows(kind, rows.height, on_disk=self.folder is not None)
        self._frames[kind].append(rows)
        self._rows += rows.height

    def relieve(self) -> None:
        """Put the rows on disk if they are many; they stay where they are if it is full."""
        if self._rows <= MOST_ROWS:
            return
        self._rows = 0
        with contextlib.suppress(*content.disk_errors()):
            self.folder = self.folder or content.scratch_folder()
            for kind, frames in self._frames.items():
                if frames:
                    file = self.folder.path / f"{kind} {len(self._files[kind])}.arrow"
                    pl.concat(frames).write_ipc(file, compression="lz4")
                    self._files[kind].append(file)
                    frames.clear()

    def take(self, kind: str, columns: list[str] | None = None) -> list[pl.DataFrame]:
        """Return the rows of one kind, which is then empty unless only some of their columns are wanted."""
        files, in_memory = self._files[kind], self._frames[kind]
        read = [pl.read_ipc(file, columns=columns) for file in files]
        if columns is not None:
            return [*read, *(frame.select(columns) for frame in in_memory)]
        for file in files:
            file.unlink(missing_ok=True)
        self._files[kind], self._frames[kind] = [], []
        return [*read, *in_memory]


_EVENTS_AT_A_TIME = 4096
"""Decoded events that become rows together: frames of fewer take longer to make than to fill."""

_TAKEN_AT_A_TIME = 256 << 20
"""Bytes of text after which native rows are taken, because they are larger than those of polars."""

_TIMED = ("kernels", "memcpy", "cpu_ops", "products", "launches", "annotations", "collectives")

_UNKNOWN = ""

_COMPLETE_ROWS: dict[str | None, str | None] = {
    **{category: ROWS.get(kind) for category, kind in CATEGORIES.items()},
    **dict.fromkeys(UNUSED_CATEGORIES),
}


class RowBuilder:
    """The rows of one file, in the order of the file."""

    def __init__(self, native: NativeRows | None) -> None:
        self._native = native
        self._decoder: Decoder | None = None
        self._rows = _Spool()
        self._decoded: list[Event] = []
        """Events that are no rows yet; while there are some, none in C is older."""
        self._calls: list[dict[str, object]] = []
        self._products: list[dict[str, object]] = []
        self._untaken_bytes = 0
        self._decoded_count = self._ambiguous_count = 0
        self.ignored: Counter[str] = Counter()
        """How many events of each unknown category there were."""
        self.unlabelled = 0
        """How many events lack their phase, or a name where it counts; the native reader refuses such."""

    @property
    def events(self) -> int:
        """Number of events."""
        return self._decoded_count + (self._native.events if self._native else 0)

    @property
    def ambiguous(self) -> int:
        """Number of events that state a key twice."""
        return self._ambiguous_count + (self._native.ambiguous if self._native else 0)

    @property
    def folder(self) -> Scratch | None:
        """Folder of the rows of a large file until they are tables."""
        return self._rows.folder

    def take(self, text: bytes, *, must_end: bool = False) -> int | None:
        """Take the events of `text`, all or, if it is damaged, none: then the result is None.

        Otherwise returns where the text after the array of events begins, which `must_end` in the text or
        may.
        """
        if (end := self.take_natively(text, must_end=must_end)) is not None:
            return end
        self._decoder = decoder_for(self._decoder, text)
        if (outcome := decoded(text, self._decoder, must_end=must_end)) is None:
            return None
        self._take_from_native()
        events, ambiguous, end = outcome
        self._add_arguments(events)
        self._decoded += events
        self._decoded_count += len(events)
        self._ambiguous_count += ambiguous
        if len(self._decoded) > _EVENTS_AT_A_TIME:
            self._add_decoded()
        self._rows.relieve()
        return end

    def take_natively(self, text: bytes, *, must_end: bool) -> int | None:
        """Take the events of `text` as `take` does, but in C; None also if that refuses them."""
        if not self._native or (end := self._native.feed(text, must_end=must_end)) is None:
            return None
        if self._decoded:
            self._add_decoded()
        if calls := self._native.calls(text):
            self._decoder = decoder_for(self._decoder, calls)
            self._add_arguments(self._decoder.decode(calls))
        self._untaken_bytes += len(text)
        if self._untaken_bytes > _TAKEN_AT_A_TIME:
            self._take_from_native()
            self._rows.relieve()
        return end

    def readable(self, text: bytes) -> bytes | None:
        """Return `text` if `take` takes it, None if it is damaged."""
        self._decoder = decoder_for(self._decoder, text)
        try:
            self._decoder.decode(b"[" + text + b"]")
        except UNREADABLE:
            return None
        return text

    def _take_from_native(self) -> None:
        self._untaken_bytes = 0
        if self._native:
            rows, ignored = self._native.take()
            for kind, frame in rows.items():
                self._add_rows(kind, frame)
            self.ignored.update(ignored)

    def _add_decoded(self) -> None:
        events, self._decoded = self._decoded, []
        by_kind: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            kind: str | None = None
            if event.ph == COMPLETE:
                kind = _COMPLETE_ROWS.get(event.cat, _UNKNOWN)
            elif event.ph in {TAIL, HEAD} and CATEGORIES.get(event.cat or "") == "arrow":
                kind = TAILS if event.ph == TAIL else HEADS
            if kind is not None:
                by_kind[kind].append(event)
            self.unlabelled += not event.ph or (bool(kind) and not event.name)
        self.ignored.update(event.cat or "" for event in by_kind.pop(_UNKNOWN, ()))
        for kind, members in by_kind.items():
            self._add_rows(kind, tables.rows_of(kind, tables.columns_of(kind, members)))

    def _add_rows(self, kind: str, rows: pl.DataFrame) -> None:
        for table, part in (tables.sorted_out(rows) if kind == UNSORTED else {kind: rows}).items():
            if part.height:
                self._rows.add(table, part)

    def _add_arguments(self, events: list[Event]) -> None:
        """Add the rows from the arguments of events: communication calls and matrix products."""
        self._calls += [communication.call(event) for event in events if communication.is_call(event)]
        self._products += [tables.product(event) for event in events if tables.is_product(event)]
        if len(self._calls) + len(self._products) > _EVENTS_AT_A_TIME:
            self._flush_arguments()

    def _flush_arguments(self) -> None:
        if self._calls:
            self._rows.add("collectives", communication.collectives(self._calls))
        if self._products:
            self._rows.add("products", tables.products(self._products))
        self._calls, self._products = [], []

    def finish(self) -> None:
        """Take the last rows; there is nothing to take after this."""
        self._take_from_native()
        self._add_decoded()
        self._flush_arguments()

    def starts(self, base_ns: int) -> pl.Series:
        """Return the start of everything that has one, ns."""
        parts = [part["ts"] for kind in _TIMED for part in self._rows.take(kind, ["ts"])]
        return pl.concat([pl.Series(dtype=pl.Int64), *parts]) + base_ns

    def tables(self, base_ns: int) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield every table, with absolute times, in order of time; to be called once."""
        for kind in _TIMED:
            yield kind, _shaped(kind, self._timed(kind, base_ns))
        tails, heads = self._timed(TAILS, base_ns), self._timed(HEADS, base_ns)
        links = None if tails is None or heads is None else tables.autograd_links(tails, heads)
        yield "autograd_links", _shaped("autograd_links", links)

    def _timed(self, kind: str, base_ns: int) -> pl.DataFrame | None:
        """Return all rows of one kind in order of time, with absolute times; None if there is none.

        Of a large table, part goes after part and then column after column, so that it is in memory once
        and not twice.
        """
        if not (parts := self._rows.take(kind)):
            return None
        together = pl.concat([tables.absolute(parts.pop(0), base_ns) for _ in range(len(parts))])
        if together["start_ns"].is_sorted():
            return together
        if together.height <= content.LARGE_ROWS:
            return together.sort("start_ns", maintain_order=True)
        order = together.select(pl.arg_sort_by("start_ns", maintain_order=True)).to_series()
        columns = together.to_dict()
        del together
        for name in columns:
            columns[name] = columns[name][order]
        return pl.DataFrame(list(columns.values()))


def _shaped(name: str, rows: pl.DataFrame | None) -> pl.DataFrame:
    return TABLES[name].empty() if rows is None else TABLES[name].frame(rows.to_dict())
