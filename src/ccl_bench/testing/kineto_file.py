"""Write the recordings of ranks as Kineto files: rank by rank, a block at a time, memory flat."""

from __future__ import annotations

import gzip
import json
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, cast

from ccl_bench.testing.kineto_events import RankEvents, group_name
from ccl_bench.testing.kineto_templates import BASE_NS, Style

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ccl_bench.testing.simulation import Timeline

_NCCL_VERSION = "2.21.5"


def opening(timeline: Timeline, rank: int, style: Style) -> str:
    """Return everything up to the first event."""
    device = _device(timeline)
    count = min(timeline.plan.devices_per_node, timeline.plan.world_size)
    descriptions = [{"id": number} | device for number in range(count)]
    job = _distributed(timeline, rank, style)
    if style.is_pretty:
        devices = ",\n".join(f"    {json.dumps(description)}" for description in descriptions)
        lines = ['  "schemaVersion": 1', f'  "deviceProperties": [\n{devices}\n  ]']
        lines += [f'  "distributedInfo": {json.dumps(job)}', '  "traceEvents": [\n']
        return "\n{\n" + ",\n".join(lines)
    header = {"schemaVersion": 1, "deviceProperties": descriptions, "cupti_version": 24}
    header |= {"record_shapes": 1, "distributedInfo": job, "displayTimeUnit": "ms"}
    if not style.has_absolute_times:
        header["baseTimeNanoseconds"] = BASE_NS
    return json.dumps(header, separators=(",", ":"))[:-1] + ',"traceEvents":['


def closing(rank: int, style: Style) -> str:
    """Return everything after the last event."""
    if not style.is_pretty:
        return "]}"
    base = "" if style.has_absolute_times else f',\n  "baseTimeNanoseconds": {BASE_NS}'
    return f'\n  ],\n  "traceName": "rank{rank}_trace.json",\n  "displayTimeUnit": "ms"{base}\n}}\n'


def _device(timeline: Timeline) -> dict[str, object]:
    device = timeline.plan.device
    return {
        "name": device.name,
        "totalGlobalMem": device.memory_bytes,
        "computeMajor": 8,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65_536,
        "warpSize": 32,
        "sharedMemPerBlock": 49_152,
        "numSms": device.sms,
        "regsPerMultiprocessor": 65_536,
        "sharedMemPerBlockOptin": 166_912,
        "sharedMemPerMultiprocessor": 167_936,
    }


def _distributed(timeline: Timeline, rank: int, style: Style) -> dict[str, object]:
    groups = timeline.mesh.groups_of(rank)
    return {
        "backend": "nccl",
        "rank": rank // style.devices_in_process,
        "world_size": timeline.plan.world_size // style.devices_in_process,
        "pg_count": len(groups),
        "pg_config": [
            {
                "pg_name": group_name(timeline, rank, group, style=style),
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in groups
        ],
        "nccl_version": _NCCL_VERSION,
    }


_BLOCK_EVENTS = 4096
_WORKER_THREAD = 200_000
_MARK = 7_777_777

_OPERATORS = ("select", "as_strided", "empty", "slice", "view", "to", "reshape", "detach")
_SHAPES = (
    '"Concrete Inputs":["","0","0"],"Input type":["c10::BFloat16","Scalar","Scalar"],'
    '"Input Strides":[[49760,1],[],[]],"Input Dims":[[2,49760],[],[]]'
)


def filler_blocks(events: RankEvents, wanted_bytes: int) -> Iterator[str]:
    """Yield about `wanted_bytes` of operators, spread evenly over the recording on a thread of their own."""
    steps, separator = events.timeline.steps, events.style.separator
    start, end = steps[0][events.rank].host_start_ns, steps[-1][events.rank].host_end_ns
    length, shift, first = end - start, events.shift_ns + start, events.external + 1
    pieces = [_pieces(events, name) for name in _OPERATORS]
    kinds, likely_number = len(pieces), first + wanted_bytes // 600
    event_bytes = len(separator.join(_event(piece, shift, likely_number) for piece in pieces)) / kinds
    count = max(1, round(wanted_bytes / event_bytes))
    for begin in range(0, count, _BLOCK_EVENTS):
        yield separator.join(
            _event(pieces[number % kinds], number * length // count + shift, first + number)
            for number in range(begin, min(count, begin + _BLOCK_EVENTS))
        )


def _event(pieces: tuple[str, str, str, str], at_ns: int, number: int) -> str:
    return f"{pieces[0]}{at_ns // 1000}.{at_ns % 1000:03d}{pieces[1]}{number}{pieces[2]}{number}{pieces[3]}"


def _pieces(events: RankEvents, name: str) -> tuple[str, str, str, str]:
    """Return the text around the time and the two ids of one operator."""
    thread = events.process + _WORKER_THREAD
    times = (_MARK, 0, *divmod(0, 1000))
    values = ("cpu_op", f"aten::{name}", events.process, thread, *times, _MARK, _MARK)
    text = events.t.host_with_more % (*values, events.t.arguments(_SHAPES))
    before, between, middle, after = text.replace(f"{_MARK}.000", f"{_MARK}").split(str(_MARK))
    return before, between, middle, after


def write_rank(
    timeline: Timeline, rank: int, path: Path, *, style: Style | None = None, filler_bytes: int = 0
) -> int:
    """Write one rank's file and return its size before compression, bytes; its process plays all its devices.

    `filler_bytes` adds operators on a thread of their own, without any work on the device, until
    the file has grown by so much: they change no answer.
    """
    style = style or Style()
    events = [RankEvents(timeline, rank + place, style) for place in range(style.devices_in_process)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as raw:
        if not style.compresses:
            return _write(raw, events, filler_bytes)
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as compressed:
            return _write(cast("BinaryIO", compressed), events, filler_bytes)


def _write(stream: BinaryIO, of_devices: list[RankEvents], filler_bytes: int) -> int:
    events = of_devices[0]
    style, separator = events.style, events.style.separator
    size = stream.write(opening(events.timeline, events.rank, style).encode())
    between = ""
    all_events = chain(events.metadata(), *(of_device.steps() for of_device in of_devices))
    for block in blocks(all_events, separator):
        size += stream.write((between + block).encode())
        between = separator
    if filler_bytes > 0:
        for block in filler_blocks(events, filler_bytes):
            size += stream.write((between + block).encode())
    return size + stream.write(closing(events.rank, style).encode())


def blocks(events: Iterable[str], separator: str) -> Iterator[str]:
    """Yield the events joined, a few thousand at a time."""
    remaining = iter(events)
    while block := separator.join(islice(remaining, _BLOCK_EVENTS)):
        yield block
