"""Reader of Ascend traces: the process of an event shows its kind.

`Python` (or `MindSpore`) holds operators and ranges of the host, `CANN` the calls that launch, `Ascend
Hardware` the tasks of the device by stream, and `Communication` (`HCCL` in older versions) its collectives
as `hcom_*` with the tasks that they are made of beside them. Whatever else there is was computed from these.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory, quality
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.device_order import drop_disordered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

Number = int | float | str | bool | None


class AscendArgs(Struct, gc=False):
    """`args` of an event."""

    name: Number = None
    task_type: str | None = field(name="Task Type", default=None)
    stream: Number = field(name="Physic Stream Id", default=None)
    stream_old: Number = field(name="Stream Id", default=None)
    connection: Number = field(name="connection_id", default=None)


class AscendEvent(Struct, gc=False):
    """One event."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: AscendArgs | None = None


class _ArrayInObject(Struct, gc=False):
    events: list[AscendEvent] = field(name="traceEvents", default_factory=list)


_ARRAY, _OBJECT = Decoder(list[AscendEvent], strict=False), Decoder(_ArrayInObject, strict=False)


Placed = tuple[AscendEvent, int | None]
"""An event and the device that it ran on."""

_COMPUTES = re.compile(
    r"AI_?C(?:ORE|PU)|AI_VECTOR_CORE|MIX_AI[CV]|^AI[CV]$|FFTS|DSA|DVPP|^KERNEL_AI", re.IGNORECASE
)
_COPIES = re.compile(r"SDMA|PCIE_DMA|MEMCPY|ASYNC_COPY", re.IGNORECASE)
_WAITS = re.compile(
    r"EVENT|NOTIFY|WAIT|RECORD|PLACE_?HOLDER|WRITE_VALUE|LABEL|STREAM|MODEL|PROFILER|BARRIER|MAINTENANCE|CALLBACK",
    re.IGNORECASE,
)
"""What the `Task Type` of the device's scheduler means; a task without one is judged by its name."""

_OPERATOR = re.compile(r"::|(?<!\w)(?=\w*Backward)\w++$")
_COLLECTIVES = ("hcom_", "hccl_")
"""How the names of HCCL's operators begin."""


def sorted_tasks(
    members: Mapping[object, Sequence[AscendEvent]], device_of: Mapping[object, int], *, without_calls: bool
) -> tuple[list[Placed], list[Placed], Counter[str]]:
    """Return the device's kernels and copies, and how many tasks are of each type that nothing is known of.

    A collective is among the tasks too; `without_calls` it does not count here.
    """
    computing: list[Placed] = []
    copying: list[Placed] = []
    unknown = Counter[str]()
    for pid, events in members.items():
        for event in events:
            if without_calls and event.name.startswith(_COLLECTIVES):
                continue
            kind = (event.args.task_type if event.args else None) or ""
            if kind and _COMPUTES.search(kind):
                computing.append((event, device_of[pid]))
            elif _COPIES.search(kind or event.name):
                copying.append((event, device_of[pid]))
            elif _WAITS.search(kind or event.name):
                continue
            elif kind:
                unknown[kind] += 1
            else:
                computing.append((event, device_of[pid]))
    return computing, copying, unknown


def tasks(placed: Sequence[Placed]) -> pl.DataFrame:
    """Return the columns that kernels and copies have in common."""
    args = [event.args for event, _ in placed]
    streams = [a.stream if a and a.stream is not None else a and a.stream_old for a in args]
    return _times([event for event, _ in placed]).with_columns(
        pl.Series("device", [device for _, device in placed], dtype=pl.Int64),
        _whole("stream", [e.tid if s is None else s for s, (e, _) in zip(streams, placed, strict=True)]),
        _whole("correlation", [a and a.connection for a in args]),
    )


def on_host(events: Sequence[AscendEvent]) -> pl.DataFrame:
    """Return the columns that operators, ranges and calls of the host have in common."""
    return _times(events).with_columns(
        _whole("process", [event.pid for event in events]), _whole("thread", [event.tid for event in events])
    )


def _times(events: Sequence[AscendEvent]) -> pl.DataFrame:
    start = _nanoseconds([event.ts for event in events])
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + _nanoseconds([event.dur for event in events]),
            "name": pl.Series([event.name for event in events], dtype=pl.Categorical),
        }
    )


def _nanoseconds(microseconds: Sequence[object]) -> pl.Series:
    """Return times as nanoseconds; text keeps the digits that a double has not."""
    texts = [f"{time:.3f}" if isinstance(time, float) else str(time) for time in microseconds]
    whole, _, fraction = (pl.col("text").str.extract(r"^(-?\d+)(\.(\d+))?$", group) for group in (1, 2, 3))
    parts = fraction.fill_null("0").str.pad_end(3, "0").str.head(3)
    nanoseconds = whole.cast(pl.Int64, strict=False) * 1000 + parts.cast(pl.Int64)
    return (
        pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}).select(nanoseconds.alias("ns")).to_series()
    )


def _whole(name: str, values: Sequence[object]) -> pl.Series:
    """Return whole numbers; whatever is none is null."""
    texts = pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
    return texts.cast(pl.Int64, strict=False)


HOST = frozenset({"Python", "MindSpore"})
RUNTIME = "CANN"
HARDWARE = "Ascend Hardware"
COLLECTIVES = frozenset({"Communication", "HCCL"})

_OPERATORS = frozenset({None, "", "cpu_op"})
"""Categories of the host's operators and ranges; tasks in its queues and Python's functions have others."""


def read_ascend(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Ascend trace in `stream`; `file` names it in messages.

    Raises InputError if its events cannot be read.
    """
    text = stream.read()
    memory.hold_json(text)
    try:
        events = _OBJECT.decode(text).events if text.lstrip()[:1] == b"{" else _ARRAY.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fix = "let the profiler analyse its data again, or copy the file again"
        raise InputError(f"its events cannot be read: {error}", where=file, fix=fix) from error
    names = {
        event.pid: str(event.args.name)
        for event in events
        if event.ph == "M" and event.name == "process_name" and event.args and event.args.name
    }
    members: defaultdict[str, dict[object, list[AscendEvent]]] = defaultdict(dict)
    for event in events:
        if event.ph == "X":
            members[names.get(event.pid, "")].setdefault(event.pid, []).append(event)
    device_of = {pid: number for number, pid in enumerate(sorted(members[HARDWARE], key=str))}
    collectives = [event for event in _flat(members, *COLLECTIVES) if event.name.startswith(_COLLECTIVES)]
    computing, copying, unknown = sorted_tasks(members[HARDWARE], device_of, without_calls=bool(collectives))
    computing += [(event, next(iter(device_of.values()), None)) for event in collectives]
    calls = _flat(members, RUNTIME)
    host = [event for event in _flat(members, *HOST) if event.cat in _OPERATORS]
    # Only its name shows whether an event of the host is an operator or a marked range.
    operators = [event for event in host if _OPERATOR.search(event.name)]
    ranges = [event for event in host if not _OPERATOR.search(event.name)]
    tables = {
        "kernels": tasks(computing),
        # The trace says neither from where to where a copy goes, nor how much it moves.
        "memcpy": tasks(copying).drop("name").with_columns(kind=pl.lit("other")),
        "cpu_ops": on_host(operators),
        "launches": on_host(calls).with_columns(
            _whole("correlation", [event.args and event.args.connection for event in calls])
        ),
        "annotations": on_host(ranges).with_columns(on_device=pl.lit(value=False)),
    }
    frames = {
        name: TABLES[name].frame(rows.to_dict()).sort("start_ns", maintain_order=True)
        for name, rows in tables.items()
    }
    possible, implausible = quality.drop_impossible(frames, file)
    unique, repeats = quality.drop_repeated(possible, file)
    ordered, disordered = drop_disordered(unique, file)
    findings = []
    if unknown:
        named = ", ".join(f"{name} {count}" for name, count in sorted(unknown.items()))
        message = f"tasks of the device that are neither known work nor known waiting: {named}"
        findings.append(Finding("categories-unknown", "note", message, file, count=sum(unknown.values())))
    if not events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return TraceContent(ordered, findings=[*findings, *implausible, *repeats, *disordered])


def _flat(members: Mapping[str, dict[object, list[AscendEvent]]], *processes: str) -> list[AscendEvent]:
    return list(chain.from_iterable(chain.from_iterable(members.get(p, {}).values() for p in processes)))
