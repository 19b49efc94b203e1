"""The rows of one file while they are gathered, piece by piece."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from ccl_bench.frames import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto import columns, communication, values
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    COMPLETE,
    HEAD,
    HEADS,
    NO_ARGS,
    ROWS,
    TAIL,
    TAILS,
    UNUSED_CATEGORIES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccl_bench.trace.formats.kineto.events import Args, Event
    from ccl_bench.trace.formats.kineto.native.rows import NativeRows

_CALLS_AT_A_TIME = 4096

_TAKEN_AT_A_TIME = 256 << 20
"""Bytes of text after which native rows are taken, because they are larger than those of polars."""

_TIMED = ("kernels", "memcpy", "cpu_ops", "launches", "annotations", "collectives")

_MAKERS: dict[str, Callable[[Sequence[Event], Sequence[Args]], pl.DataFrame]] = {
    "kernels": columns.kernels,
    "memcpy": columns.memcpy,
    "cpu_ops": columns.cpu_ops,
    "launches": columns.launches,
    "annotations": columns.named_ranges,
    TAILS: columns.arrow_ends,
    HEADS: columns.arrow_ends,
}

_UNKNOWN = ""

_COMPLETE_ROWS: dict[str | None, str | None] = {
    **{category: ROWS.get(kind) for category, kind in CATEGORIES.items()},
    **dict.fromkeys(UNUSED_CATEGORIES),
}


def _table(event: Event) -> str | None:
    """Return the rows that an event belongs to; None for none."""
    if event.ph == COMPLETE:
        return _COMPLETE_ROWS.get(event.cat, _UNKNOWN)
    if event.ph in {TAIL, HEAD} and CATEGORIES.get(event.cat or "") == "arrow":
        return TAILS if event.ph == TAIL else HEADS
    return None


class Gathering:
    """The rows of one file, in the order of the file."""

    def __init__(self, native: NativeRows | None) -> None:
        self._native = native
        self._rows: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._calls: list[dict[str, object]] = []
        self._events = 0
        self._untaken_bytes = 0
        self.ignored: Counter[str] = Counter()
        """How many events of each unknown category there were."""

    @property
    def events(self) -> int:
        """How many events there were."""
        return self._events + (self._native.events if self._native else 0)

    def taken(self, text: bytes, *, must_end: bool) -> int | None:
        """Let the native reader take the events of `text`; None if it does not.

        Otherwise returns where the text after the array of events begins.
        """
        if not self._native or (end := self._native.feed(text, must_end=must_end)) is None:
            return None
        self._add_calls(self._native.calls(text))
        self._untaken_bytes += len(text)
        if self._untaken_bytes > _TAKEN_AT_A_TIME:
            self._take_native()
        return end

    def add(self, events: list[Event]) -> None:
        """Add the events of one piece."""
        self._take_native()
        self._events += len(events)
        tables: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if (name := _table(event)) is not None:
                tables[name].append(event)
        self.ignored.update(event.cat or "" for event in tables.pop(_UNKNOWN, ()))
        for name, members in tables.items():
            self._rows[name].append(_MAKERS[name](members, [event.args or NO_ARGS for event in members]))
        self._add_calls([event for event in events if communication.is_call(event)])

    def _take_native(self) -> None:
        self._untaken_bytes = 0
        if self._native:
            rows, ignored = self._native.take()
            for name, frame in rows.items():
                self._rows[name].append(frame)
            self.ignored.update(ignored)

    def _add_calls(self, calls: list[Event]) -> None:
        self._calls += [communication.call(event) for event in calls]
        if len(self._calls) > _CALLS_AT_A_TIME:
            self._flush_calls()

    def _flush_calls(self) -> None:
        if self._calls:
            self._rows["collectives"].append(communication.collectives(self._calls))
        self._calls = []

    def _timed(self, name: str, base_ns: int) -> pl.DataFrame | None:
        """Return all rows of one kind, with absolute times; None if there are none."""
        if not self._rows[name]:
            return None
        # A piece with odd times in it holds exact nanoseconds, the others hold doubles.
        alike = groupby(self._rows[name], key=_clock_type)
        timed = pl.concat([values.absolute(pl.concat(parts), base_ns) for _, parts in alike])
        return timed.sort("start_ns", maintain_order=True)

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return every table, with absolute times, in order of time; to be called once."""
        self._take_native()
        self._flush_calls()
        timed = {name: self._timed(name, base_ns) for name in _TIMED}
        tails, heads = self._timed(TAILS, base_ns), self._timed(HEADS, base_ns)
        if tails is not None and heads is not None:
            timed["autograd_links"] = columns.autograd_links(tails, heads)
        return {
            name: TABLES[name].empty() if rows is None else TABLES[name].frame(rows.to_dict())
            for name in (*_TIMED, "autograd_links")
            for rows in [timed.get(name)]
        }


def _clock_type(rows: pl.DataFrame) -> str:
    return f"{rows.schema['ts']} {rows.schema['dur']}"
