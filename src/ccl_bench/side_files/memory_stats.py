"""Counters of the caching allocator, in `memory_stats.json` or `memory_snapshot.json`.

Layouts in use: `torch.cuda.memory_stats()`, flat or nested, for one device, for each rank, or as a list
of records; a few peaks with a unit in their names, as torchtitan logs them; and the segments of a
snapshot, which show the state when it was taken but no peak.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ccl_bench.card.yaml_tree import IssueLog, Reading, shown
from ccl_bench.side_files.json_file import finite_number, read_json, report_unknown_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.storage.files import Location

_TORCH_NAMES = {
    "allocated_bytes_all_peak": "peak_allocated_bytes",
    "active_bytes_all_peak": "peak_active_bytes",
    "reserved_bytes_all_peak": "peak_reserved_bytes",
    "inactive_split_bytes_all_peak": "peak_inactive_split_bytes",
    "allocated_bytes_all_current": "allocated_bytes",
    "active_bytes_all_current": "active_bytes",
    "reserved_bytes_all_current": "reserved_bytes",
    "inactive_split_bytes_all_current": "inactive_split_bytes",
    "allocation_all_allocated": "allocations",
    "allocation_all_freed": "frees",
    "num_alloc_retries": "alloc_retries",
    "num_ooms": "ooms",
}
"""Key of `torch.cuda.memory_stats()`, with _ for every sign → field."""
_OTHER_TORCH_NAMES = re.compile(
    r"\w+_(all|small_pool|large_pool)_(current|peak|allocated|freed)|oversize_(allocations|segments)_\w+"
    r"|max_split_size|num_(sync_all_streams|device_alloc|device_free|oom_rejections)"
)
_SIZES = {
    frozenset(name.split("_")): f"{name}_bytes"
    for kind in ("allocated", "active", "reserved", "inactive_split")
    for name in (f"peak_{kind}", kind)
}
"""Words of a key, in any order → field."""
_PLAIN_NAMES = (*_SIZES.values(), "num_alloc_retries", "num_ooms")
_NESTED = 3
"""Parts of a key of torch, which may be mappings in each other: `allocated_bytes.all.peak`."""
_SYNONYMS = {"max": "peak", "alloc": "allocated"}
_FILLERS = frozenset({"memory", "mem", "cuda", "gpu", "current"})
_LABELS = frozenset(
    {"rank", "local_rank", "device", "device_name", "step", "host", "hostname", "node", "pid"}
)
_PREFIXES = {"bytes": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_PREFIXES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNIT = re.compile(rf"_({'|'.join(_PREFIXES)})$")


def field_of(key: str) -> tuple[str, int | None]:
    """Return the field that a key stands for, empty if none, and its unit in bytes where it names one."""
    plain = _plain(key)
    if plain in _TORCH_NAMES:
        return _TORCH_NAMES[plain], 1
    unit = _UNIT.search(plain)
    words = (plain[: unit.start()] if unit else plain).split("_")
    name = _SIZES.get(frozenset(_SYNONYMS.get(word, word) for word in words) - _FILLERS, "")
    return name, _PREFIXES[unit[1]] if unit and name else None


def _plain(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", key.lower().replace("%", "_percent")).strip("_")


MEMORY_FILE_NAMES = ("memory_stats.json", "memory_snapshot.json")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device of one rank; None if the file does not say. A peak is the highest since the start."""

    rank: int | None = None
    device: int | None = None
    peak_allocated_bytes: int | None = None
    peak_active_bytes: int | None = None
    """Allocated, and freed blocks that a stream may still use."""
    peak_reserved_bytes: int | None = None
    """Taken from the driver."""
    peak_inactive_split_bytes: int | None = None
    """Free parts of blocks that are partly in use, which cannot be given back."""
    allocated_bytes: int | None = None
    """This and what follows without a peak: when the file was written."""
    active_bytes: int | None = None
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    free_bytes: int | None = None
    """Reserved and in no block that is in use."""
    largest_free_bytes: int | None = None
    """The largest of those blocks."""
    allocations: int | None = None
    frees: int | None = None
    alloc_retries: int | None = None
    """Allocations that succeeded only after cached blocks were given back."""
    ooms: int | None = None
    """Out-of-memory errors."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """The devices of a run in order of rank and device; damaged values are left out."""

    devices: tuple[DeviceMemory, ...] = ()


_RANK = re.compile(r"(?:rank[_ ]?)?(\d{1,9})", re.IGNORECASE)
_DEVICE = re.compile(r"(?:cuda:|device[_ ]?|gpu[_ ]?)(\d{1,9})", re.IGNORECASE)

Owner = tuple[int | None, int | None]
Values = dict[str, int]


def read_memory_stats(path: Location) -> Reading[MemoryStats]:
    """Return the memory of each device in the file; InputError only where it is not JSON."""
    data, log = read_json(path)
    by_owner: dict[Owner, Values] = {}
    _collect(data, "", (None, None), by_owner, log)
    report_unknown_keys(_unknown_keys(data), _PLAIN_NAMES, log)
    if not by_owner:
        log.error("", "holds no counters of a device", "write torch.cuda.memory_stats() of each rank")
    ordered = sorted(by_owner.items(), key=lambda item: tuple((n is None, n or 0) for n in item[0]))
    devices = [_checked(DeviceMemory(*owner, **values), log) for owner, values in ordered]
    return Reading(MemoryStats(tuple(devices)), log.in_order(), str(path))


def is_memory_stats(data: object) -> bool:
    """Whether JSON data has the shape of an allocator's counters or of a snapshot."""
    by_owner: dict[Owner, Values] = {}
    _collect(data, "", (None, None), by_owner, IssueLog())
    return bool(by_owner)


def _collect(data: Any, path: str, owner: Owner, by_owner: dict[Owner, Values], log: IssueLog) -> None:
    """Add every device in `data`, which is one device or holds several, to `by_owner`."""
    parts: list[tuple[str, Any, Owner]] = []
    if _is_segments(data) or (isinstance(data, dict) and any(field_of(key)[0] for key, _ in _flat(data))):
        parts = [(path, data, _owner_in(data, owner))]
    elif isinstance(data, dict):
        item_owner: Owner
        for key, item in data.items():
            if match := _DEVICE.fullmatch(key):
                item_owner = owner[0], int(match[1])
            elif match := _RANK.fullmatch(key):
                item_owner = _next(owner, int(match[1]))
            else:
                item_owner = _owner_in(item, owner)
            parts.append((f"{path}.{shown(key)}" if path else shown(key), item, item_owner))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            names_owner = isinstance(item, dict) and {"rank", "device", "step"} & set(item)
            item_owner = _owner_in(item, owner if names_owner else _next(owner, index))
            parts.append((f"{path}[{index}]", item, item_owner))
    for inner, item, item_owner in parts:
        if _is_segments(item):
            by_device: dict[int | None, list[dict[str, Any]]] = {}
            for segment in item["segments"] if isinstance(item, dict) else item:
                device = segment.get("device", item_owner[1])
                by_device.setdefault(device if isinstance(device, int) else item_owner[1], []).append(segment)
            for device, segments in by_device.items():
                _merge(by_owner, (item_owner[0], device), _state(segments))
        elif isinstance(item, dict) and (values := _values(item, inner, log)):
            _merge(by_owner, item_owner, values)
        elif inner != path and isinstance(item, dict | list):
            _collect(item, inner, item_owner, by_owner, log)


def _next(owner: Owner, index: int) -> Owner:
    """Return the owner of an item of a list: the rank of that number, or its device if the rank is known."""
    return (index, owner[1]) if owner[0] is None else (owner[0], index)


def _owner_in(item: Any, owner: Owner) -> Owner:
    """Return the rank and device that a record names itself."""
    if not isinstance(item, dict):
        return owner
    stated_owner = (item.get("rank", owner[0]), item.get("device", owner[1]))
    numbers = (
        n if isinstance(n, int) and not isinstance(n, bool) else o
        for n, o in zip(stated_owner, owner, strict=True)
    )
    rank, device = numbers
    return rank, device


def _flat(data: dict[str, Any], prefix: str = "", depth: int = _NESTED) -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested mappings with joined keys, as `allocated_bytes.all.peak` is nested."""
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and depth > 1:
            yield from _flat(value, name, depth - 1)
        else:
            yield name, value


def _values(data: dict[str, Any], path: str, log: IssueLog) -> Values:
    """Return the numbers of one device by field."""
    numbers: Values = {}
    for key, value in _flat(data):
        name, unit = field_of(key)
        if not name:
            continue
        inner = f"{path}.{shown(key)}" if path else shown(key)
        number = finite_number(value, inner, log)
        if number is None:
            continue
        if number < 0 or (unit is None and not number.is_integer()):
            log.error(
                inner, f"{number:g} is not a number of bytes", "write whole bytes, or name the unit: _gib"
            )
            continue
        if unit == 10**9:
            log.note(inner, "is read as 10^9 bytes", "write _gib for 2^30, or bytes")
        numbers[name] = max(numbers.get(name, 0), round(number * (unit or 1)))
    return numbers


def _unknown_keys(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and path of every value that stands for nothing; segments are read as a whole."""
    if _is_segments(data):
        return
    items = data.items() if isinstance(data, dict) else ()
    for key, item in [*items, *(enumerate(data) if isinstance(data, list) else ())]:
        inner = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{shown(key)}".lstrip(".")
        if isinstance(item, dict | list):
            yield from _unknown_keys(item, inner)
        elif isinstance(key, str):
            parts = inner.split(".")  # of which the last ones may be the parts of one key
            keys = [".".join(parts[-depth:]) for depth in range(1, _NESTED + 1)]
            is_known = _plain(keys[0]) in _LABELS or any(
                field_of(each)[0] or _OTHER_TORCH_NAMES.fullmatch(_plain(each)) for each in keys
            )
            if not is_known:
                yield shown(key), inner


def _merge(by_owner: dict[Owner, Values], owner: Owner, values: Values) -> None:
    """Keep the highest of repeated peaks, and the latest of everything else."""
    owner_values = by_owner.setdefault(owner, {})
    for name, value in values.items():
        owner_values[name] = max(owner_values.get(name, 0), value) if name.startswith("peak_") else value


def _is_segments(data: Any) -> bool:
    segments = data.get("segments") if isinstance(data, dict) else data
    return (
        isinstance(segments, list)
        and bool(segments)
        and all(isinstance(item, dict) and "total_size" in item for item in segments)
    )


def _state(segments: list[dict[str, Any]]) -> Values:
    blocks = [[b for b in s.get("blocks", ()) if isinstance(b, dict)] for s in segments]
    free = [[_size(b, "size") for b in of_segment if b.get("state") == "inactive"] for of_segment in blocks]
    return {
        "reserved_bytes": sum(_size(segment, "total_size") for segment in segments),
        "allocated_bytes": sum(_size(segment, "allocated_size") for segment in segments),
        "active_bytes": sum(_size(segment, "active_size") for segment in segments),
        "inactive_split_bytes": sum(
            sum(f) for f, of_segment in zip(free, blocks, strict=True) if len(of_segment) > 1
        ),
        "free_bytes": sum(map(sum, free)),
        "largest_free_bytes": max((size for of_segment in free for size in of_segment), default=0),
    }


def _size(data: dict[str, Any], key: str) -> int:
    value = data.get(key, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _checked(device: DeviceMemory, log: IssueLog) -> DeviceMemory:
    """Return a device without impossible values: more bytes allocated than reserved."""
    values = asdict(device)
    for peak in ("peak_", ""):
        reserved = values[f"{peak}reserved_bytes"]
        allocated = values[f"{peak}allocated_bytes"]
        if reserved is not None and allocated is not None and allocated > reserved:
            prefix = "" if device.rank is None else f"rank {device.rank}: "
            log.error(
                "", f"{prefix}{allocated} bytes are allocated of {reserved} reserved", "check the units"
            )
            device = replace(device, **{f"{peak}reserved_bytes": None, f"{peak}allocated_bytes": None})
    return device
