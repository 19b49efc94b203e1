"""Read a Kineto trace into tables, in one pass and in bounded memory."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.kineto import document
from ccl_bench.trace.formats.kineto.cleaning import cleaned
from ccl_bench.trace.formats.kineto.decoding import event_lists
from ccl_bench.trace.formats.kineto.gathering import Gathering
from ccl_bench.trace.formats.kineto.native.rows import native_rows
from ccl_bench.trace.formats.kineto.pieces import Document
from ccl_bench.trace.formats.kineto.processes import need_one_process
from ccl_bench.trace.formats.kineto.salvage import Losses

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from typing import BinaryIO

_EVENTS = b'"traceEvents"'

_METADATA_DAMAGED = "what stands around the events is damaged: rank, devices or clock base may be missing"


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
    if _EVENTS in text.tail:
        message = "another trace follows the first in the file, and is not read"
        yield Finding("events-lost", "error", message, file)
    if losses.repaired:
        yield Finding(
            "events-repaired",
            "note",
            f"{losses.repaired} events were read after mending their text, {place}",
            file,
            count=losses.repaired,
        )


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]


def _unknown(gathering: Gathering, file: str) -> Iterator[Finding]:
    if gathering.ignored:
        listed = ", ".join(f"{name or '(none)'} {count}" for name, count in _most(gathering.ignored))
        count = gathering.ignored.total()
        yield Finding("categories-unknown", "note", f"categories not used: {listed}", file, count=count)


def _unlabelled(gathering: Gathering, file: str) -> Iterator[Finding]:
    if gathering.unlabelled:
        message = f"{gathering.unlabelled} events lack the name or phase that says what they are"
        yield Finding("events-unlabelled", "error", message, file, count=gathering.unlabelled)


def read_kineto(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Kineto trace in `stream`; `file` names it in messages.

    Raises InputError when the file holds no array of events at all, or those of several processes.
    Everything less than that is salvaged and reported in the findings.
    """
    text, losses, gathering = Document(), Losses(), Gathering(native_rows())
    collecting = gc.isenabled()
    gc.disable()  # events are freed by reference count; walking them in between only costs time
    try:
        for events in event_lists(stream, text, losses, gathering.taken):
            gathering.add(events)
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
    tables, doubts = cleaned(gathering, document.base_time_ns(meta), file)
    need_one_process(tables, file)
    tables |= {"devices": document.devices(meta), "process_groups": document.process_groups(meta)}
    findings = [*_damage(text, losses, file), *_unknown(gathering, file), *_unlabelled(gathering, file)]
    findings += doubts
    if not is_whole:
        findings.append(Finding("metadata-damaged", "warning", _METADATA_DAMAGED, file))
    if not gathering.events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return TraceContent(
        tables=tables,
        rank=document.rank(meta),
        world_size=document.world_size(meta),
        findings=findings,
        attributes=document.attributes(meta),
    )
