"""Events of a Chrome trace that JAX wrote for viewers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct, field
from msgspec.json import Decoder

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from pathlib import Path

MOST_EVENTS = 1_000_000
"""Events that JAX writes: those that start first.

Source: `GetTraceViewerMaxEvents` of XLA's `xplane_to_trace_events.cc`.
"""

_FIX = "copy it again, or use the .xplane.pb that was written beside it"
_NEXT = b'},{"'
_ENDS_TRIED = 64
_LATEST_US = 2**51
"""Times from here on (71 years) are no times."""

Value = str | int | float | None
_Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class JaxArgs(Struct, gc=False):
    """`args` of an event, as far as they are used; whole numbers are text."""

    name: Value = None
    step_num: Value = None
    run_id: Value = None
    hlo_op: Value = None
    hlo_module: Value = None
    long_name: Value = None
    device_ordinal: Value = None
    global_device_id: Value = None
    num_addressable_devices: Value = None
    num_partitions: Value = None
    num_replicas: Value = None
    correlation_id: Value = None
    memcpy_details: Value = None
    memset_details: Value = None
    device_duration_ps: Value = None


class JaxEvent(Struct, gc=False):
    """One event, or with `ph` M the name of a process or thread."""

    ph: str = ""
    name: str = ""
    pid: _Number = 0
    tid: _Number = 0
    ts: float = 0.0
    """Microseconds since the recording began."""
    dur: float = 0.0
    args: JaxArgs = field(default_factory=JaxArgs)

    @property
    def start_ns(self) -> int:
        """When it began."""
        return round(self.ts * 1000)

    @property
    def end_ns(self) -> int:
        """When it ended.

        A TPU's events state how long they lasted by its own clock; the length beside is that between two
        times that were moved to the clock of the host, and may be far too short.
        """
        duration_ps = number(self.args.device_duration_ps)
        return self.start_ns + (
            round(self.dur * 1000) if duration_ps is None else max(0, duration_ps) // 1000
        )


class _Viewed(Struct, gc=False):
    events: list[JaxEvent] = field(name="traceEvents", default_factory=list)


class _ViewedTexts(Struct, gc=False):
    events: list[Raw] = field(name="traceEvents", default_factory=list)


_DECODER, _TEXTS, _EVENT = Decoder(_Viewed), Decoder(_ViewedTexts), Decoder(JaxEvent)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Events(NamedTuple):
    """The events of a file, and the findings on it."""

    events: list[JaxEvent]
    findings: list[Finding]


def read_events(path: Path, file: str) -> Events:
    """Return the events of a file, those before the end of a truncated one; `file` names it in messages.

    Raises InputError if its events cannot be read.
    """
    blocks: list[bytes] = []
    broken_off = ""
    with memory.open_trace(path) as stream:
        try:
            while block := stream.read(1 << 20):
                blocks.append(block)
        except storage.DAMAGED as error:
            broken_off = str(error) or type(error).__name__
    text = b"".join(blocks)
    memory.hold_json(text)
    findings: list[Finding] = []
    try:
        all_events = _DECODER.decode(text).events
    except _UNREADABLE as error:
        all_events, findings = _salvaged(text, file, error)
    events = [event for event in all_events if 0 <= event.ts < _LATEST_US and 0 <= event.dur < _LATEST_US]
    if broken_off:
        message = f"reading stopped after {len(text):,} bytes: {broken_off}"
        findings.append(Finding("file-broken-off", "error", message, file))
    if lost := len(all_events) - len(events):
        message = f"{counted(lost, 'event has', 'events have')} an impossible time: left out"
        findings.append(Finding("impossible-time", "warning", message, file, count=lost))
    if sum(event.ph == "X" for event in events) >= MOST_EVENTS:
        message = (
            f"JAX writes the first {MOST_EVENTS:,} events of a recording into such a file: it may be cut"
        )
        findings.append(Finding("file-truncated", "error", message, file))
    if not events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return Events(events, findings)


def _salvaged(text: bytes, file: str, error: Exception) -> tuple[list[JaxEvent], list[Finding]]:
    """Return the readable events, and findings on the lost ones; InputError if none is readable."""
    findings: list[Finding] = []
    texts: list[Raw] | None = None
    with contextlib.suppress(*_UNREADABLE):
        texts = _TEXTS.decode(text).events
    if (
        texts is None
    ):  # the end is missing: the last ends of an event are tried, since texts may hold such too
        end = len(text)
        for _ in range(_ENDS_TRIED):
            end = text.rfind(_NEXT, 0, end)
            if end < 0:
                break
            with contextlib.suppress(*_UNREADABLE):
                texts = _TEXTS.decode(text[: end + 1] + b"]}").events
                break
        if texts is None:
            raise InputError(f"its events cannot be read: {error}", where=file, fix=_FIX) from error
        message = f"the file ends among its events, after {len(text):,} bytes"
        findings.append(Finding("file-truncated", "error", message, file))
    events = []
    for event_text in texts:
        with contextlib.suppress(*_UNREADABLE):
            events.append(_EVENT.decode(event_text))
    if lost := len(texts) - len(events):
        message = f"{counted(lost, 'event is', 'events are')} unreadable"
        findings.append(Finding("events-lost", "error", message, file, count=lost))
    return events, findings


def number(value: Value) -> int | None:
    """Return a whole number, which may be given as text; None for anything else."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        # One of 19 digits may not fit 64 bits.
        return int(value) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
    return value if isinstance(value, int) and abs(value) < 2**63 else None
