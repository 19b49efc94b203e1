"""How many tokens went to which expert, in `moe_assignments*.json`: one file for a run, or one a rank.

Layouts in use: `{"rank": 0, "token_counts": [tokens of each expert]}`, `{"expert_parallel_size": 4,
"layers": {"0": [tokens of each device]}}`, and lists of such records. Counts may be given by layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.card.yaml_tree import Reading, shown
from ccl_bench.side_files.json_file import finite_number, read_json

if TYPE_CHECKING:
    from ccl_bench.card.yaml_tree import IssueLog
    from ccl_bench.storage.files import Location

MOE_FILE_PATTERN = "moe_assignments*.json"
COUNT_KEYS = ("token_counts", "tokens_per_expert", "tokens_per_device", "counts")
SIZE_KEYS = ("expert_parallel_size", "ep_size", "ep")
DROPPED_KEYS = ("dropped", "dropped_tokens")

_EXAMPLE = 'write {"rank": 0, "token_counts": [120, 80]}'


@dataclass(frozen=True, slots=True)
class ExpertTokens:
    """Tokens of one layer on one rank, or of all together, by expert or by device."""

    tokens: tuple[int, ...]
    """Tokens in the order of experts, or of devices where there are as many."""
    rank: int | None = None
    layer: str | None = None
    devices: int | None = None
    """Expert-parallel degree as the file states it."""


@dataclass(frozen=True, slots=True)
class MoeAssignments:
    """Everything that was written about the assignment of tokens; damaged records are left out."""

    records: tuple[ExpertTokens, ...] = ()
    dropped_tokens: int | None = None
    """Tokens that no expert had room for, or None where they are not stated."""


def _concat(parts: list[MoeAssignments]) -> MoeAssignments:
    dropped = [part.dropped_tokens for part in parts if part.dropped_tokens is not None]
    records = tuple(record for part in parts for record in part.records)
    return MoeAssignments(records, sum(dropped) if dropped else None)


def read_moe_assignments(path: Location, before: MoeAssignments | None = None) -> Reading[MoeAssignments]:
    """Return the records of one file behind those read `before`; InputError only where it is not JSON."""
    data, log = read_json(path)
    parts: list[MoeAssignments] = []
    listed = data if isinstance(data, list) else [data]
    for index, record in enumerate(listed):
        place = f"[{index}]" if isinstance(data, list) else ""
        if isinstance(record, dict):
            parts.append(_record(record, place, log))
        else:
            log.error(place, f"{shown(repr(record))} is not a record", _EXAMPLE)
    found = _concat(parts)
    if not found.records and not log.entries:
        log.error("", "holds no counts of tokens", _EXAMPLE)
    return Reading(_concat([before or MoeAssignments(), found]), log.in_order(), str(path))


def is_moe_assignments(data: object) -> bool:
    """Whether JSON data has the shape of token assignments."""
    records = data if isinstance(data, list) else [data]
    keys = {"layers", *COUNT_KEYS}
    return any(isinstance(record, dict) and bool(keys & record.keys()) for record in records)


def _record(record: dict[str, Any], place: str, log: IssueLog) -> MoeAssignments:
    prefix = f"{place}." if place else ""
    rank = _count(record, ("rank",), prefix, log)
    devices = _count(record, SIZE_KEYS, prefix, log)
    if devices == 0:
        log.error(
            f"{prefix}{_key(record, SIZE_KEYS)}", "is 0", "write the number of devices that share experts"
        )
        devices = None
    found: list[ExpertTokens] = []
    for layer, counts, path in _counted(record, prefix, log):
        tokens = _tokens(counts, path, log)
        if tokens:
            found.append(ExpertTokens(tokens, rank, layer, devices))
    return MoeAssignments(tuple(found), _dropped(record, prefix, log))


def _key(record: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if record.get(name) is not None), None)


def _count(record: dict[str, Any], names: tuple[str, ...], prefix: str, log: IssueLog) -> int | None:
    key = _key(record, names)
    return None if key is None else _whole(record[key], f"{prefix}{key}", log)


def _whole(value: object, path: str, log: IssueLog) -> int | None:
    number = finite_number(value, path, log)
    if number is None or (number >= 0 and number.is_integer()):
        return None if number is None else int(number)
    log.error(path, f"{number:g} is not a count and is left out", "write a whole number, 0 or more")
    return None


def _counted(record: dict[str, Any], prefix: str, log: IssueLog) -> list[tuple[str | None, Any, str]]:
    """Return (layer, counts, place) of everything that is counted in a record."""
    if record.get("layers") is not None:
        layers, path = record["layers"], f"{prefix}layers"
    else:
        key = _key(record, COUNT_KEYS)
        if key is None:
            log.error(prefix.rstrip("."), "holds no counts of tokens", _EXAMPLE)
            return []
        layers, path = record[key], f"{prefix}{key}"
    if isinstance(layers, dict):
        return [(name, _inner(value), f"{path}.{shown(name)}") for name, value in layers.items()]
    if isinstance(layers, list) and layers and all(isinstance(item, list | dict) for item in layers):
        return [(str(index), _inner(item), f"{path}[{index}]") for index, item in enumerate(layers)]
    return [(None, layers, path)]


def _inner(value: Any) -> Any:
    """Return the counts of a layer that is written as a mapping, else the value itself."""
    key = _key(value, COUNT_KEYS) if isinstance(value, dict) else None
    return value[key] if key else value


def _tokens(counts: Any, path: str, log: IssueLog) -> tuple[int, ...]:
    """Return a list of counts, or nothing where one is damaged: the place of a count is its expert."""
    if not isinstance(counts, list) or not counts:
        log.error(path, f"{shown(repr(counts))} is not a list of counts", _EXAMPLE)
        return ()
    found = [_whole(value, f"{path}[{index}]", log) for index, value in enumerate(counts)]
    kept = tuple(value for value in found if value is not None)
    return kept if len(kept) == len(found) else ()


def _dropped(record: dict[str, Any], prefix: str, log: IssueLog) -> int | None:
    key = _key(record, DROPPED_KEYS)
    if key is None:
        return None
    value, path = record[key], f"{prefix}{key}"
    if isinstance(value, list):
        found = [_whole(item, f"{path}[{index}]", log) for index, item in enumerate(value)]
        return sum(item for item in found if item is not None)
    return _whole(value, path, log)
