"""Read a Kineto trace into tables, in one pass and in bounded memory."""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.errors import InputError
from ccl_bench.frames import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import Finding, TraceContent
from ccl_bench.trace.formats.kineto import columns, communication, document, plausibility
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    NO_ARGS,
    UNUSED_CATEGORIES,
    Event,
    ExactEvent,
)
from ccl_bench.trace.formats.kineto.pieces import Document, pieces
from ccl_bench.trace.formats.kineto.salvage import Losses, events_of, last_events_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_LONG_FRACTION = re.compile(rb'"ts"\s*:\s*"?\d{14,}\.\d')
"""Microseconds with more digits than a double holds (torch 2.2 and 2.3, kineto#919)."""

_CALLS_AT_A_TIME = 4096

_TIMED = ("kernels", "memcpy", "cpu_ops", "launches", "annotations", "collectives")


@dataclass(slots=True)
class _Builder:
    """The rows of one file while they are gathered, piece by piece."""

    rows: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: defaultdict(list))
    calls: list[dict[str, object]] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    events: int = 0

    def add(self, events: list[Event]) -> None:
        """Sort the events of one piece by what they become."""
        self.events += len(events)
        kinds: dict[str, list[Event]] = {}
        for event in events:
            if event.ph == "X":
                kinds.setdefault(event.cat or "", []).append(event)
            elif event.cat == "fwdbwd":
                kinds.setdefault(f"arrow {event.ph}", []).append(event)
        for category, members in kinds.items():
            self._add_kind(category, members)

    def _add_kind(self, category: str, events: list[Event]) -> None:
        args = [event.args or NO_ARGS for event in events]
        match CATEGORIES.get(category):
            case "kernel":
                self.rows["kernels"].append(columns.kernels(events, args))
                self._add_calls([e for e, a in zip(events, args, strict=True) if a.collective], "kernel")
            case "memcpy":
                self.rows["memcpy"].append(columns.memcpy(events, args, "other"))
            case "memset":
                self.rows["memcpy"].append(columns.memcpy(events, args, "memset"))
            case "cpu_op":
                self.rows["cpu_ops"].append(columns.cpu_ops(events, args))
                self._add_calls(communication.calls_among(events))
            case "launch":
                self.rows["launches"].append(columns.launches(events, args))
            case "annotation":
                self.rows["annotations"].append(columns.ranges(events, args, on_device=False))
                self._add_calls(communication.calls_among(events))
            case "device_annotation":
                self.rows["annotations"].append(columns.ranges(events, args, on_device=True))
            case "arrow":
                self.rows[category].append(columns.arrow_ends(events))
            case None if category not in UNUSED_CATEGORIES:
                self.ignored[category] += len(events)

    def _add_calls(self, calls: list[Event], source: str | None = None) -> None:
        self.calls += [communication.call(event, source) for event in calls]
        if len(self.calls) > _CALLS_AT_A_TIME:
            self._flush_calls()

    def _flush_calls(self) -> None:
        if self.calls:
            self.rows["collectives"].append(communication.collectives(self.calls))
        self.calls = []

    def _timed(self, name: str, base_ns: int) -> pl.DataFrame | None:
        """Return all rows of one kind, with absolute times; None if there are none."""
        if not self.rows[name]:
            return None
        # A piece with odd times in it holds exact nanoseconds, the others hold doubles.
        alike = groupby(sorted(self.rows[name], key=_clock_type), key=_clock_type)
        return pl.concat([columns.absolute(pl.concat(parts), base_ns) for _, parts in alike])

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return every table, with absolute times, in order of time."""
        self._flush_calls()
        timed = {name: self._timed(name, base_ns) for name in _TIMED}
        tails, heads = self._timed("arrow s", base_ns), self._timed("arrow f", base_ns)
        linked = tails is not None and heads is not None
        timed["autograd_links"] = columns.autograd_links(tails, heads) if linked else None
        return {
            name: TABLES[name].empty() if rows is None else TABLES[name].frame(rows.to_dict())
            for name, rows in timed.items()
        }


def _clock_type(rows: pl.DataFrame) -> str:
    return f"{rows.schema['ts']} {rows.schema['dur']}"


def _event_lists(stream: BinaryIO, text: Document, losses: Losses) -> Iterator[list[Event]]:
    """Yield the events of the file, one piece at a time."""
    decoder: msgspec.json.Decoder[list[Event]] | None = None
    previous: tuple[int, bytes] | None = None
    for offset, piece in pieces(stream, text):
        if decoder is None:
            kind = ExactEvent if _LONG_FRACTION.search(piece) else Event
            decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        if previous:
            yield events_of(previous[1], previous[0], decoder, losses)
        previous = (offset, piece)
    if previous and decoder:
        events, text.tail = last_events_of(previous[1], previous[0], decoder, losses)
        yield events


def _damage(text: Document, losses: Losses, file: str) -> Iterator[Finding]:
    place = f"first at byte {losses.first_at:,}" if losses.first_at >= 0 else ""
    if text.broken_off:
        yield Finding(
            "file-broken-off", "error", f"reading stopped after {text.size:,} bytes: {text.broken_off}", file
        )
    elif losses.truncated:
        yield Finding(
            "file-truncated", "error", f"the file ends among its events, after {text.size:,} bytes", file
        )
    if losses.lost:
        yield Finding("events-lost", "error", f"{losses.lost} events are unreadable, {place}", file, count=losses.lost)
    if losses.repaired:
        yield Finding(
            "events-repaired",
            "note",
            f"{losses.repaired} events were read after mending their text, {place}",
            file,
            count=losses.repaired,
        )


def _unknown(builder: _Builder, file: str) -> Iterator[Finding]:
    if builder.ignored:
        listed = ", ".join(f"{name or '(none)'} {count}" for name, count in builder.ignored.most_common(5))
        count = builder.ignored.total()
        yield Finding("categories-unknown", "note", f"categories not used: {listed}", file, count=count)


def read_kineto(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Kineto trace in `stream`; `file` names it in messages.

    Raises InputError when the file holds no array of events at all. Everything less than
    that is salvaged and reported in the findings.
    """
    text, losses, builder = Document(), Losses(), _Builder()
    collecting = gc.isenabled()
    gc.disable()  # events are freed by reference count; walking them in between only costs time
    try:
        for events in _event_lists(stream, text, losses):
            builder.add(events)
    finally:
        if collecting:
            gc.enable()
    if not text.found_events:
        raise InputError(
            text.broken_off or "no array of trace events in it",
            where=file,
            fix="export the trace again with torch.profiler, or leave the file out of the run",
        )
    meta = document.metadata(text.head, text.tail)
    tables, implausible = plausibility.screened(builder.tables(document.base_time_ns(meta)), file)
    tables |= {"devices": document.devices(meta), "process_groups": document.process_groups(meta)}
    findings = [*_damage(text, losses, file), *_unknown(builder, file), *implausible]
    if not builder.events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return TraceContent(
        tables=tables,
        rank=document.rank(meta),
        world_size=document.world_size(meta),
        findings=findings,
        attributes=document.attributes(meta),
    )
