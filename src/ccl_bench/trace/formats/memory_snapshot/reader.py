"""Reader of CUDA memory snapshots: events of the allocator, segments and blocks, call stacks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.unpickling import unpickle

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

TABLE_NAMES = (
    "memory_events",
    "memory_segments",
    "memory_blocks",
    "memory_stacks",
    "memory_frames",
    "memory_settings",
)

LARGEST_BYTES = 4 << 30
"""Largest snapshot, decompressed; a million events with their stacks take a tenth of it."""


_FIX = "dump it again with torch.cuda.memory._dump_snapshot()"
_FEWER_EVENTS = "record fewer events"
_PLAIN_DATA = f"a memory snapshot is plain data: {_FIX}"


def read_memory_snapshot(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of a snapshot; `file` names it in messages.

    Raises InputError if the file is more than plain data, or no snapshot.
    """
    code = storage.read_whole(stream, file, LARGEST_BYTES, _FEWER_EVENTS)
    root, containers = unpickle(code, file, _PLAIN_DATA)
    segments, histories, settings = _parts(root, containers, file)
    stacks = Stacks()
    events, damaged_count, unknown = events_table(histories, stacks)
    by_label: dict[str, int | None] = {}
    for name, value in settings.items():  # those of a group are `group.name`
        for key, number in (value if isinstance(value, dict) else {None: value}).items():
            label = name if key is None else f"{name}.{key}"
            by_label[label[:100]] = int(number) if isinstance(number, bool) else whole(number)
    numbers_by_name = {name: value for name, value in by_label.items() if value is not None}
    tables: dict[str, pl.DataFrame] = {
        "memory_events": events,
        "memory_segments": segments_table(segments, stacks),
        "memory_blocks": blocks_table(segments, stacks),
        "memory_settings": TABLES["memory_settings"].frame(
            {"name": list(numbers_by_name), "value": list(numbers_by_name.values())}
        ),
        **stacks.tables(),
    }
    findings = []
    if damaged_count:
        message = f"{counted(damaged_count, 'event')} of the allocator cannot be read"
        findings.append(
            Finding("events-lost", "error", message, file, count=damaged_count, touches=TABLE_NAMES)
        )
    if unknown:
        message = f"events of the allocator that are not used: {', '.join(unknown[:5])}"
        findings.append(
            Finding("categories-unknown", "note", message, file, count=len(unknown), touches=TABLE_NAMES)
        )
    allocator_settings = text(settings.get("PYTORCH_CUDA_ALLOC_CONF") or settings.get("PYTORCH_ALLOC_CONF"))
    attributes = {"cuda_allocator_settings": allocator_settings} if allocator_settings else {}
    return TraceContent(tables, findings=findings, attributes=attributes)


def _parts(root: object, containers: int, file: str) -> tuple[list[Row], list[object], Row]:
    """Return segments, one history for each device, and settings.

    The oldest layout is the list of segments alone.
    """
    root = root if isinstance(root, dict) else {"segments": root}
    segment_list, traces = root.get("segments"), root.get("device_traces", [])
    segments = mappings(segment_list)
    if not isinstance(segment_list, list | tuple) or len(segments) < len(segment_list):
        raise InputError("is not a memory snapshot: it has no list of segments", where=file, fix=_FIX)
    if not isinstance(traces, list | tuple):
        raise InputError("is not a memory snapshot: its history is not a list", where=file, fix=_FIX)
    lists = [*(segment.get("blocks") for segment in segments), *traces]
    rows = len(segments) + sum(map(length, lists))
    if rows > containers:
        message = f"is refused: its {containers:,} containers stand for {rows:,} rows"
        raise InputError(message, where=file, fix=_FIX)
    settings = root.get("allocator_settings")
    return segments, list(traces), settings if isinstance(settings, dict) else {}


LONGEST_TEXT = 1000
"""Characters of a name that are kept; one long text may stand in for very many names."""

_LARGEST = 1 << 63
_MICROSECOND_NS = 1000


def whole(value: object) -> int | None:
    """Return a value that is a whole number of 64 bits, else None."""
    return value if type(value) is int and -_LARGEST <= value < _LARGEST else None


def amount(value: object) -> int | None:
    """Return a value that is a number of bytes or an address, else None."""
    number = whole(value)
    return number if number is not None and number >= 0 else None


def text(value: object) -> str | None:
    """Return a text that says something, cut to a length that can be kept, else None."""
    return value[:LONGEST_TEXT] if isinstance(value, str) and value not in {"", "N/A"} else None


def flag(value: object) -> bool | None:
    """Return a value that is yes or no, else None."""
    return value if isinstance(value, bool) else None


def mappings(value: object) -> list[dict[str, object]]:
    """Return the dictionaries in a list; none if it is not a list."""
    return [item for item in value if type(item) is dict] if isinstance(value, list | tuple) else []


def length(value: object) -> int:
    """Return the number of items in a list; 0 if it is not a list."""
    return len(value) if isinstance(value, list | tuple) else 0


_NUMBER_TYPES, _TEXT_TYPES = frozenset({int, type(None)}), frozenset({str, type(None)})


def numbers(values: list[object], least: int = -_LARGEST, times: int = 1) -> pl.Series:
    """Return whole numbers from `least` on as a column, multiplied; others and too large ones become null."""
    if _NUMBER_TYPES.issuperset(map(type, values)):
        with contextlib.suppress(OverflowError, TypeError, pl.exceptions.PolarsError):
            series = pl.Series("number", values, dtype=pl.Int64)
            fits = pl.col("number").is_between(least, (_LARGEST - 1) // times)
            return series.to_frame().select(pl.when(fits).then(pl.col("number") * times)).to_series()
    whole_numbers = [whole(value) for value in values]
    return pl.Series(
        [None if number is None or number < least else whole(number * times) for number in whole_numbers],
        dtype=pl.Int64,
    )


def texts(values: list[object]) -> pl.Series:
    """Return texts that say something as a column."""
    if not _TEXT_TYPES.issuperset(map(type, values)):
        return pl.Series([text(value) for value in values], dtype=pl.String)
    by_value = {value: text(value) for value in {*values}}
    if len(by_value) == 1:
        return pl.repeat(next(iter(by_value.values())), len(values), dtype=pl.String, eager=True)
    return pl.Series([by_value[value] for value in values], dtype=pl.String)


Frame = tuple[str | None, str | None, int | None]
"""Function, file, line."""


class Stacks:
    """The stacks met so far, by number.

    A number is looked up by the identity of a list that the whole snapshot keeps alive: a
    file in which many events share one long stack costs no more than its bytes.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._frames_seen: dict[int, int] = {}
        self._stacks_seen: dict[int, int | None] = {}

    def number(self, frames: object) -> int | None:
        """Return the number of a stack; None if no frames were recorded."""
        seen_number = self._stacks_seen.get(id(frames), -1)
        if seen_number != -1:
            return seen_number
        stack = []
        for frame in mappings(frames):
            frame_number = self._frames_seen.get(id(frame))
            if frame_number is None:
                content = (text(frame.get("name")), text(frame.get("filename")), whole(frame.get("line")))
                frame_number = self._frames.setdefault(content, len(self._frames))
                self._frames_seen[id(frame)] = frame_number
            stack.append(frame_number)
        number = self._stacks.setdefault(tuple(stack), len(self._stacks)) if stack else None
        if isinstance(frames, list | tuple):
            self._stacks_seen[id(frames)] = number
        return number

    def numbers(self, frame_lists: list[object]) -> pl.Series:
        """Return the numbers of stacks as a column."""
        for frames in {id(frames): frames for frames in frame_lists}.values():
            self.number(frames)
        return pl.Series([*map(self._stacks_seen.get, map(id, frame_lists))], dtype=pl.Int64)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the stacks and their frames."""
        functions, files, lines = zip(*self._frames, strict=True) if self._frames else ((), (), ())
        stacks = {"stack": range(len(self._stacks)), "frames": [list(stack) for stack in self._stacks]}
        frames = {
            "frame": range(len(self._frames)),
            "function": list(functions),
            "file": list(files),
            "line": list(lines),
        }
        return {
            "memory_stacks": TABLES["memory_stacks"].frame(stacks),
            "memory_frames": TABLES["memory_frames"].frame(frames),
        }


ACTIONS = frozenset(
    {
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "snapshot",
        "oom",
    }
)

_UNPLACED = frozenset({"snapshot", "oom"})
"""Actions that concern no address."""

_KEYS = (
    *("action", "addr", "size", "stream", "time_us"),
    *("category", "user_metadata", "compile_context", "frames"),
)

Row = dict[str, object]


def events_table(histories: Iterable[object], stacks: Stacks) -> tuple[pl.DataFrame, int, list[str]]:
    """Return the events of all devices, how many are damaged, and actions that are not known.

    The history of a device is at the position of its number.
    """
    parts: list[pl.DataFrame] = []
    damaged_count, unknown = 0, set[str]()
    for device, history in enumerate(histories):
        rows = mappings(history)
        damaged_count += len(history) - len(rows) if isinstance(history, list | tuple) else 0
        columns = _columns(rows)
        if _are_whole(columns):
            parts.append(_events(device, rows, columns, stacks))
            continue
        with_action = [row for row in rows if text(row.get("action"))]
        of_known_action = [row for row in with_action if row["action"] in ACTIONS]
        whole_rows = [row for row in of_known_action if _is_whole(row)]
        unknown |= {text(row["action"]) or "" for row in with_action if row["action"] not in ACTIONS}
        damaged_count += len(rows) - len(with_action) + len(of_known_action) - len(whole_rows)
        if whole_rows:
            parts.append(_events(device, whole_rows, _columns(whole_rows), stacks))
    return TABLES["memory_events"].concat(parts), damaged_count, sorted(unknown)


def _columns(rows: list[Row]) -> dict[str, list[Any]]:
    return {key: [row.get(key) for row in rows] for key in _KEYS}


def _are_whole(columns: dict[str, list[Any]]) -> bool:
    """Whether all events are known, placed and of a size, as they nearly always are."""
    actions = columns["action"]
    if not actions or {*map(type, actions)} != {str} or not ACTIONS.issuperset(actions):
        return False
    return all(
        {*map(type, values)} == {int} and min(values) >= 0 and max(values) < _LARGEST
        for values in (columns["addr"], columns["size"])
    )


def _is_whole(row: Row) -> bool:
    has_place = row["action"] in _UNPLACED or amount(row.get("addr")) is not None
    return has_place and amount(row.get("size")) is not None


def _events(device: int, rows: list[Row], columns: dict[str, list[Any]], stacks: Stacks) -> pl.DataFrame:
    free = [row.get("device_free", row.get("addr")) if row["action"] == "oom" else None for row in rows]
    return TABLES["memory_events"].frame(
        {
            "device": pl.repeat(device, len(rows), dtype=pl.Int64, eager=True),
            "order": pl.int_range(len(rows), dtype=pl.Int64, eager=True),
            "time_ns": numbers(columns["time_us"], 1, _MICROSECOND_NS),
            "action": pl.Series(columns["action"], dtype=pl.String),
            "address": numbers(columns["addr"], 0),
            "bytes": numbers(columns["size"], 0),
            "stream": numbers(columns["stream"]),
            "device_free_bytes": numbers(free, 0),
            "category": texts(columns["category"]),
            "metadata": texts(columns["user_metadata"]),
            "compile_context": texts(columns["compile_context"]),
            "stack": stacks.numbers(columns["frames"]),
        }
    )


ALLOCATED, PENDING, INACTIVE = "allocated", "pending_free", "inactive"

_STATES = {
    "active_allocated": ALLOCATED,
    "active_pending_free": PENDING,
    "active_awaiting_free": PENDING,
    "inactive": INACTIVE,
}


def segments_table(segments: list[Row], stacks: Stacks) -> pl.DataFrame:
    """Return the segments; sums that an older layout lacks come from its blocks."""
    return _table("memory_segments", [_segment(segment, stacks) for segment in segments])


def _segment(segment: Row, stacks: Stacks) -> tuple[object, ...]:
    blocks = mappings(segment.get("blocks"))
    block_sums = dict.fromkeys((ALLOCATED, PENDING, INACTIVE), 0)
    for block in blocks:
        state = _STATES.get(text(block.get("state")) or "", INACTIVE)
        block_sums[state] += amount(block.get("size")) or 0
    return (
        whole(segment.get("device")),
        amount(segment.get("address")),
        _segment_sum(segment, "total_size", sum(block_sums.values())),
        _segment_sum(segment, "allocated_size", block_sums[ALLOCATED]),
        _segment_sum(segment, "active_size", block_sums[ALLOCATED] + block_sums[PENDING]),
        amount(segment.get("requested_size")),
        whole(segment.get("stream")),
        text(segment.get("segment_type")),
        flag(segment.get("is_expandable")),
        _pool(segment.get("segment_pool_id")),
        len(blocks),
        stacks.number(segment.get("frames")),
    )


def _table(name: str, rows: list[tuple[object, ...]]) -> pl.DataFrame:
    empty = TABLES[name].empty()
    return pl.DataFrame(rows, schema=empty.schema, orient="row") if rows else empty


def _segment_sum(segment: Row, key: str, block_sum: int) -> int | None:
    """Return a sum as the snapshot states it, else as it comes from the blocks."""
    stated_sum = amount(segment.get(key))
    return amount(block_sum) if stated_sum is None else stated_sum


def _pool(value: object) -> str | None:
    """Return the id of a private pool, such as a CUDA graph's; None for the common one."""
    if not isinstance(value, list | tuple) or len(value) != 2 or None in map(whole, value):
        return None
    return f"{value[0]}:{value[1]}" if any(value) else None


def blocks_table(segments: list[Row], stacks: Stacks) -> pl.DataFrame:
    """Return the blocks of all segments; an older layout gives their places by their order alone."""
    rows: list[tuple[object, ...]] = []
    for segment in segments:
        device, start = whole(segment.get("device")), amount(segment.get("address"))
        stream = whole(segment.get("stream"))
        at = start or 0
        for block in mappings(segment.get("blocks")):
            size = amount(block.get("size")) or 0
            stated_address = amount(block.get("address"))
            at = at if stated_address is None else stated_address
            requested, frames = block.get("requested_size"), block.get("frames")
            if "frames" not in block and "requested_size" not in block:  # an older layout has a history
                latest = next(iter(mappings(block.get("history"))), {})
                requested, frames = latest.get("real_size"), latest.get("frames")
            state = _STATES.get(text(block.get("state")) or "")
            place = (device, start, whole(at), size)
            rows.append((*place, amount(requested), state, stream, stacks.number(frames)))
            at += size
    return _table("memory_blocks", rows)
