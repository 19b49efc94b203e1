"""Reader of dumps of the Flight Recorder.

The fields are those of `FlightRecorderDetail.hpp` and `FlightRecorder.cpp` of PyTorch: version 2.10 writes
all of them, and each earlier one lacks some. torch 2.2 (`TraceUtils.h`) writes a list of entries alone.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.unpickling import unpickle

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.base.lazy_imports import pl

LARGEST_BYTES = 1 << 30
"""Largest dump, decompressed; 100,000 calls with their stacks take a tenth of it."""

_LONGEST_TEXT = 1000
_DEEPEST_STACK = 200
_LARGEST = 1 << 63
_MILLISECOND_NS = 1_000_000
_MICROSECOND_NS = 1_000
_PROTO = 0x80
_NUMBER = re.compile(r"\d{1,9}")

_FIX = "dump it again with torch._C._distributed_c10d._dump_fr_trace()"
_FEWER_CALLS = "record fewer calls: TORCH_FR_BUFFER_SIZE=2000 suffices"
_PLAIN_DATA = f"a dump of the Flight Recorder is plain data: {_FIX}"

Row = dict[str, object]


def read_dump(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a dump; `file` names it in messages.

    Of JSON that is cut off or damaged, what is whole before the damage is read. Raises InputError if that is
    nothing, if a pickle is damaged, or if the file is more than plain data, or no dump.
    """
    root, damage = _data(storage.read_whole(stream, file, LARGEST_BYTES, _FEWER_CALLS), file)
    root, findings = _of_list(root, file) if isinstance(root, list) else (root, [])
    if not isinstance(root, dict):
        raise InputError("is no dump of the Flight Recorder", where=file, fix=_FIX)
    entries = root.get("entries", [])
    if not isinstance(entries, list | tuple):
        raise InputError("is no dump of the Flight Recorder: its entries are no list", where=file, fix=_FIX)
    rows = [row for item in entries if isinstance(item, dict) and (row := _call(item)) is not None]
    rows.sort(key=lambda row: row["record"])  # type: ignore[arg-type, return-value]
    stacks, calls = _number_stacks(rows), TABLES["recorded_calls"]
    dump = {"version": [_text(root.get("version"))], "library": [_text(root.get("comm_lib_version"))]}
    tables: dict[str, pl.DataFrame] = {
        "recorder_dumps": TABLES["recorder_dumps"].frame(
            {**dump, "calls": [len(rows)], "is_whole": [not damage]}
        ),
        "recorded_calls": calls.frame({name: [row[name] for row in rows] for name in calls.columns}),
        "recorded_groups": _groups(root.get("pg_config")),
        "recorded_status": _status(root.get("pg_status"), rows, root.get("pg_config")),
        "recorded_stacks": stacks,
    }
    touches = ("recorded_calls",)
    if lost := len(entries) - len(rows):
        message = f"{counted(lost, 'call')} of the Flight Recorder cannot be read"
        findings.append(Finding("events-lost", "error", message, file, count=lost, touches=touches))
    if damage:
        message = f"the dump {damage}; {counted(len(rows), 'call')} before that are used"
        findings.append(Finding("events-lost", "error", message, file, touches=touches))
    return TraceContent(tables, findings=findings)


_ALL_RANKS = ("0", "default_pg")
"""Name and description of the first process group of each process."""


def _of_list(entries: list[object], file: str) -> tuple[Row, list[Finding]]:
    """Return a dump of torch 2.2 as later versions write it, and a finding on what it lacks.

    It names a group by its number in the process, which is another group in another process: only calls of
    the first group, that of all ranks, are comparable.
    """
    of_all: list[object] = []
    left_out = 0
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            of_all.append(entry)
            continue
        if _whole(entry.get("pg_id")):
            left_out += 1
            continue
        created, sequence = _whole(entry.get("time_created_us")), entry.get("seq_id")
        is_p2p = re.match(r"nccl:(?:send|recv)", _text(entry.get("profiling_name")) or "") is not None
        of_later_torch = {
            "record_id": place,
            "process_group": _ALL_RANKS,
            "p2p_seq_id" if is_p2p else "collective_seq_id": sequence,
            "is_p2p": is_p2p,
            "time_created_ns": created * _MICROSECOND_NS if created else None,
        }
        of_all.append({**of_later_torch, **entry})
    lost = f", so {counted(left_out, 'call')} of other groups cannot be compared" if left_out else ""
    message = f"the dump is of torch 2.2 and states neither element types nor process groups{lost}"
    finding = Finding("dump-of-old-torch", "warning", message, file, touches=("recorded_calls",))
    return {"entries": of_all}, [finding]


def _data(code: bytes, file: str) -> tuple[object, str]:
    """Return the content of a dump, and what is wrong with a damaged file of which a part can be read."""
    if code[:1] == bytes([_PROTO]):
        return unpickle(code, file, _PLAIN_DATA)[0], ""
    memory.hold_json(code)
    try:
        return msgspec.json.decode(code), ""
    except RecursionError as error:
        raise InputError("is nested too deeply", where=file, fix=_FIX) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"is not valid JSON, probably because it was cut off: {error}"
        root = _before_damage(code)
        if not root["entries"]:
            raise InputError(message, where=file, fix=_FIX) from error
        return root, message


_WITHOUT_CALLS = ("version", "comm_lib_version", "pg_config", "pg_status")
_ENTRIES = re.compile(r'"entries"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def _before_damage(code: bytes) -> dict[str, object]:
    """Return what is whole in JSON that is cut off or damaged: the entries up to the first that is not."""
    memory.hold(len(code))  # as text
    text, decoder = code.decode("utf-8", "replace"), json.JSONDecoder()
    root: dict[str, object] = {}
    for key in _WITHOUT_CALLS:
        if place := re.search(rf'"{key}"\s*:\s*', text):
            with suppress(ValueError, RecursionError):
                root[key] = decoder.raw_decode(text, place.end())[0]
    entries: list[object] = []
    if begin := _ENTRIES.search(text):
        at = begin.end()
        with suppress(ValueError, RecursionError):
            while between := _BETWEEN.match(text, at):
                entry, at = decoder.raw_decode(text, between.end())
                entries.append(entry)
    return {**root, "entries": entries}


def _call(entry: Row) -> Row | None:
    """Return the row of an entry; None if it lacks a field that every call has."""
    record, name = _whole(entry.get("record_id")), _text(entry.get("profiling_name"))
    group = entry.get("process_group")
    names = [_text(part) or "" for part in group] if isinstance(group, list | tuple) else []
    created = _time(entry.get("time_created_ns"))
    if record is None or name is None or not names or created is None:
        return None
    backend, _, operation = name.rpartition(":")
    sequences = [_whole(entry.get(f"{kind}_seq_id")) for kind in ("collective", "p2p")]
    timeout = _whole(entry.get("timeout_ms"))
    return {
        "record": record,
        "group": names[0],
        "description": names[1] if len(names) > 1 else "",
        "sequence": sequences[0],
        "p2p_sequence": sequences[1],
        "is_p2p": entry.get("is_p2p") is True,
        "operation": operation,
        "backend": backend,
        **_tensors(entry, "in", "input"),
        **_tensors(entry, "out", "output"),
        "state": _text(entry.get("state")) or "",
        "is_retired": entry.get("retired") is True,
        "created_ns": created,
        "started_ns": _time(entry.get("time_discovered_started_ns")),
        "completed_ns": _time(entry.get("time_discovered_completed_ns")),
        "timeout_ns": timeout * _MILLISECOND_NS if timeout and 0 < timeout < _LARGEST // 10**6 else None,
        "thread": _text(entry.get("thread_name")),
        "frames": entry.get("frames"),
        "group_id": _whole(entry.get("pg_id")),
    }


def _tensors(entry: Row, column: str, key: str) -> Row:
    """Return shapes and types of tensors; the product of a shape is its number of elements."""
    sizes, types = entry.get(f"{key}_sizes"), entry.get(f"{key}_dtypes")
    shapes = [
        [size for item in shape if (size := _whole(item)) is not None]
        for shape in (sizes if isinstance(sizes, list | tuple) else ())
        if isinstance(shape, list | tuple)
    ]
    names = [_text(item) or "" for item in types] if isinstance(types, list | tuple) else []
    return {f"{column}_shapes": shapes, f"{column}_dtypes": names}


def _groups(config: object) -> pl.DataFrame:
    """Return the groups that a dump lists with their members; gloo lists none."""
    rows = []
    for name, group in config.items() if isinstance(config, dict) else ():
        if not isinstance(group, dict):
            continue
        value = group.get("ranks")
        ranks = (
            value
            if isinstance(value, list | tuple)
            else _NUMBER.findall(value if isinstance(value, str) else "")
        )
        members = sorted({number for rank in ranks if (number := _rank(rank)) is not None})
        if members:
            rows.append((_text(name) or "", _text(group.get("desc")) or "", members))
    names, descriptions, members_of = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"group": names, "description": descriptions, "ranks": members_of}
    return TABLES["recorded_groups"].frame(columns)


def _status(status: object, calls: list[Row], config: object) -> pl.DataFrame:
    """Return how far the rank is in each group, which the dump names by an id alone.

    Calls show which group an id is. Ids count the groups of a process in the order of their making, as do
    names that are numbers: so the place among the listed groups shows it too, unless a call contradicts.
    """
    of_calls = {each["group_id"]: str(each["group"]) for each in calls if each["group_id"] is not None}
    names = [*config] if isinstance(config, dict) else []
    in_order = sorted(names, key=int) if all(map(_NUMBER.fullmatch, names)) else []
    names_by_id: dict[object, str] = dict(enumerate(in_order))
    if any(names_by_id.get(number) != name for number, name in of_calls.items()):
        names_by_id = {}
    names_by_id |= of_calls
    rows = [
        (names_by_id[number], enqueued)
        for key, state in (status.items() if isinstance(status, dict) else ())
        if (number := _rank(key)) in names_by_id and isinstance(state, dict)
        if (enqueued := _rank(state.get("last_enqueued_collective"))) is not None
    ]
    columns = zip(*rows, strict=True) if rows else [()] * 2
    return TABLES["recorded_status"].frame(dict(zip(("group", "enqueued"), columns, strict=True)))


def _number_stacks(rows: list[Row]) -> pl.DataFrame:
    """Put the number of its stack into each row in place of the frames, and return the stacks.

    Many calls share a stack, whose innermost frame is the first; one without any recorded has none.
    """
    numbers: dict[tuple[tuple[str, str, int], ...], int] = {}
    for row in rows:
        frames = row.pop("frames")
        stack = tuple(
            (_text(each.get("name")) or "", _text(each.get("filename")) or "", _whole(each.get("line")) or 0)
            for each in (frames[:_DEEPEST_STACK] if isinstance(frames, list | tuple) else ())
            if isinstance(each, dict)
        )
        row["stack"] = numbers.setdefault(stack, len(numbers)) if stack else None
    lines = [
        (number, depth, *frame) for stack, number in numbers.items() for depth, frame in enumerate(stack)
    ]
    columns = zip(*lines, strict=True) if lines else [()] * 5
    names = ("stack", "depth", "function", "file", "line")
    return TABLES["recorded_stacks"].frame(dict(zip(names, columns, strict=True)))


def _whole(value: object) -> int | None:
    """Return a value that is a whole number of 64 bits, else None."""
    return value if type(value) is int and -_LARGEST <= value < _LARGEST else None


def _rank(value: object) -> int | None:
    number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else _whole(value)
    return number if number is not None and 0 <= number < 10**9 else None


def _time(value: object) -> int | None:
    """Return a time; None if it has not come yet, which JSON writes as 0."""
    number = _whole(value)
    return number if number is not None and number > 0 else None


def _text(value: object) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None
