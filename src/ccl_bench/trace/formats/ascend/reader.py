"""Read an Ascend trace into tables: what is an event is told by the process that it is in.

`Python` (or `MindSpore`) holds operators and ranges of the host, `CANN` the calls that launch, `Ascend
Hardware` the tasks of the device by stream, and `Communication` (`HCCL` in older versions) its collectives
as `hcom_*` with the tasks that they are made of beside them. Whatever else there is was computed from these.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace import plausibility, repeats
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.ascend import columns
from ccl_bench.trace.formats.ascend.events import Event, document_events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

HOST = frozenset({"Python", "MindSpore"})
RUNTIME = "CANN"
HARDWARE = "Ascend Hardware"
COLLECTIVES = frozenset({"Communication", "HCCL"})

_COLLECTIVE = "hcom_"
_OPERATORS = frozenset({None, "", "cpu_op"})
"""Categories of the host's operators and ranges; tasks in its queues and Python's functions have others."""


def read_ascend(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Ascend trace in `stream`; `file` names it in messages."""
    try:
        events = document_events(stream.read())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fix = "let the profiler analyse its data again, or copy the file again"
        raise InputError(f"its events cannot be read: {error}", where=file, fix=fix) from error
    members = _by_process(events)
    device_of = {pid: number for number, pid in enumerate(sorted(members[HARDWARE], key=str))}
    calls = _flat(members, *COLLECTIVES)
    collectives = [event for event in calls if event.name.startswith(_COLLECTIVE)]
    tasks, unknown = columns.sorted_tasks(members[HARDWARE], device_of, without_calls=bool(collectives))
    host = [event for event in _flat(members, *HOST) if event.cat in _OPERATORS]
    ranges = [event for event in host if columns.is_range(event.name)]
    device = next(iter(device_of.values()), None)
    tables = {
        "kernels": columns.kernels([*tasks.kernels, *((event, device) for event in collectives)]),
        "memcpy": columns.copies(tasks.copies),
        "cpu_ops": columns.on_host([event for event in host if not columns.is_range(event.name)]),
        "launches": columns.launches(_flat(members, RUNTIME)),
        "annotations": columns.on_host(ranges).with_columns(on_device=pl.lit(value=False)),
    }
    framed = {name: _framed(name, rows) for name, rows in tables.items()}
    possible, implausible = plausibility.screened(framed, file)
    once, repeated = repeats.each_once(possible, file)
    return TraceContent(
        tables=dict(once), findings=[*_doubts(events, unknown, file), *implausible, *repeated]
    )


def _by_process(events: Sequence[Event]) -> defaultdict[str, dict[object, list[Event]]]:
    """Return the complete events of each process id, by what the process is called."""
    names = {event.pid: event.process for event in events if event.process}
    found: defaultdict[str, dict[object, list[Event]]] = defaultdict(dict)
    for event in events:
        if event.ph == "X":
            found[names.get(event.pid, "")].setdefault(event.pid, []).append(event)
    return found


def _flat(members: Mapping[str, dict[object, list[Event]]], *processes: str) -> list[Event]:
    return list(chain.from_iterable(chain.from_iterable(members.get(p, {}).values() for p in processes)))


def _framed(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    return TABLES[name].frame(rows.to_dict()).sort("start_ns", maintain_order=True)


def _doubts(events: Sequence[Event], unknown: Mapping[str, int], file: str) -> list[Finding]:
    found = []
    if unknown:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(unknown.items()))
        message = f"tasks of the device that are neither work nor waiting as far as is known: {listed}"
        found.append(Finding("categories-unknown", "note", message, file, count=sum(unknown.values())))
    if not events:
        found.append(Finding("no-events", "error", "the file holds no events", file))
    return found
