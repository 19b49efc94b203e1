"""Read a Kineto trace into tables, in one pass and in bounded memory."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from ccl_bench.errors import InputError
from ccl_bench.findings import Finding
from ccl_bench.frames import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.kineto import columns, communication, document, plausibility, values
from ccl_bench.trace.formats.kineto.decoding import event_lists
from ccl_bench.trace.formats.kineto.events import CATEGORIES, NO_ARGS, UNUSED_CATEGORIES
from ccl_bench.trace.formats.kineto.pieces import Document
from ccl_bench.trace.formats.kineto.salvage import Losses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.trace.formats.kineto.events import Event

_CALLS_AT_A_TIME = 4096

_METADATA_DAMAGED = "what stands around the events is damaged: rank, devices or clock base may be missing"

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
        categories: dict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            categories[event.cat].append(event)
        for category, members in categories.items():
            if category == "fwdbwd":
                self._add_kind("arrow s", [event for event in members if event.ph == "s"])
                self._add_kind("arrow f", [event for event in members if event.ph == "f"])
            if category not in UNUSED_CATEGORIES:
                self._add_kind(category or "", [event for event in members if event.ph == "X"])

    def _add_kind(self, category: str, events: list[Event]) -> None:
        if not events:
            return
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
            case None:
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
        timed = pl.concat([values.absolute(pl.concat(parts), base_ns) for _, parts in alike])
        return timed.sort("start_ns", maintain_order=True)

    def tables(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """Return every table, with absolute times, in order of time."""
        self._flush_calls()
        timed = {name: self._timed(name, base_ns) for name in _TIMED}
        tails, heads = self._timed("arrow s", base_ns), self._timed("arrow f", base_ns)
        if tails is not None and heads is not None:
            timed["autograd_links"] = columns.autograd_links(tails, heads)
        return {
            name: TABLES[name].empty() if rows is None else TABLES[name].frame(rows.to_dict())
            for name in (*_TIMED, "autograd_links")
            for rows in [timed.get(name)]
        }


def _clock_type(rows: pl.DataFrame) -> str:
    return f"{rows.schema['ts']} {rows.schema['dur']}"


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
        message = f"{losses.lost} events are unreadable, {place}"
        yield Finding("events-lost", "error", message, file, count=losses.lost)
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
        for events in event_lists(stream, text, losses):
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
    meta, is_whole = document.metadata(text.head, text.tail)
    tables, implausible = plausibility.screened(builder.tables(document.base_time_ns(meta)), file)
    tables |= {"devices": document.devices(meta), "process_groups": document.process_groups(meta)}
    findings = [*_damage(text, losses, file), *_unknown(builder, file), *implausible]
    if not is_whole:
        findings.append(Finding("metadata-damaged", "warning", _METADATA_DAMAGED, file))
    if not builder.events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return TraceContent(
        tables=tables,
        rank=document.rank(meta),
        world_size=document.world_size(meta),
        findings=findings,
        attributes=document.attributes(meta),
    )
