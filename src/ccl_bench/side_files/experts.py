"""`moe_assignments*.json`: tokens for each expert, in one file for a run or one for each rank.

Layouts in use: `{"<rank>": {"<expert>": tokens}}`, `{"<rank>": [tokens of each expert]}`, a list of such
lists, `{"rank": 0, "token_counts": ...}`, `{"expert_parallel_size": 4, "layers": {"0": [tokens of each
device]}}` and lists of such records. A file of one rank holds its counts alone. Counts may be given by layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.card.yaml_tree import Reading, shown
from ccl_bench.side_files.json_file import finite_number, read_json, report_unknown_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.card.yaml_tree import IssueLog
    from ccl_bench.storage.files import Location

MOE_FILE_PATTERN = "moe_assignments*.json"
COUNT_KEYS = ("token_counts", "tokens_per_expert", "tokens_per_device", "counts")
SIZE_KEYS = ("expert_parallel_size", "ep_size", "ep")
DROPPED_KEYS = ("dropped", "dropped_tokens")
MOST_EXPERTS = 65_536
"""Experts of one layer; a larger number is a mistake."""

_EXAMPLE = 'write {"0": {"0": 120, "1": 80}}: rank, expert, tokens'
_RANK = re.compile(r"(?:rank[_ -]?)?(\d{1,9})", re.IGNORECASE)
_EXPERT = re.compile(r"(?:expert[_ -]?)?(\d{1,9})", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"moe_assignments[_-]?(?:rank[_-]?)?(\d{1,9})\D[^/]*$", re.IGNORECASE)
_META_KEYS = ("rank", *SIZE_KEYS, *DROPPED_KEYS)
_RECORD_KEYS = frozenset({"rank", "layers", *COUNT_KEYS})


@dataclass(frozen=True, slots=True)
class ExpertTokens:
    """Tokens of one layer on one rank, or of all together, by expert or by device."""

    tokens: tuple[int, ...]
    """Tokens in the order of experts, or of devices where there are as many."""
    rank: int | None = None
    layer: str | None = None
    devices: int | None = None
    """Expert-parallel degree as the file states it."""
    names_experts: bool = False
    """Whether experts are named by number, so that there may be more than the last one that is named."""


@dataclass(frozen=True, slots=True)
class MoeAssignments:
    """Everything that was written about the assignment of tokens; damaged records are left out."""

    records: tuple[ExpertTokens, ...] = ()
    dropped_tokens: int | None = None
    """Tokens that no expert had room for, or None if not stated."""


def _concat(parts: list[MoeAssignments]) -> MoeAssignments:
    dropped_tokens = [part.dropped_tokens for part in parts if part.dropped_tokens is not None]
    records = tuple(record for part in parts for record in part.records)
    return MoeAssignments(records, sum(dropped_tokens) if dropped_tokens else None)


def read_moe_assignments(path: Location, before: MoeAssignments | None = None) -> Reading[MoeAssignments]:
    """Return the records of one file behind those read `before`; InputError only where it is not JSON."""
    data, log = read_json(path)
    match = _RANK_IN_NAME.search(str(path))
    parts = [_part(*rank_counts, log) for rank_counts in _by_rank(data, int(match[1]) if match else None)]
    assignments = _concat(parts)
    if not assignments.records and not log.entries:
        log.error("", "holds no counts of tokens", _EXAMPLE)
    return Reading(_concat([before or MoeAssignments(), assignments]), log.in_order(), str(path))


def is_moe_assignments(data: object) -> bool:
    """Whether JSON data has the shape of token assignments."""
    items = [item for item, _, _ in _by_rank(data, None)]
    return any(
        bool(_RECORD_KEYS & item.keys()) or any(map(_EXPERT.fullmatch, item))
        if isinstance(item, dict)
        else isinstance(item, list)
        for item in items
    )


def _by_rank(data: Any, rank: int | None) -> Iterator[tuple[Any, str, int | None]]:
    """Yield the counts of each rank, their path, and the rank; `rank` is that of the file's name."""
    if isinstance(data, list) and any(isinstance(item, list | dict) for item in data):
        for index, item in enumerate(data):
            yield item, f"[{index}]", index if isinstance(item, list) else rank
    elif (
        isinstance(data, dict)
        and not _RECORD_KEYS & data.keys()
        and any(
            # The keys of a mapping are ranks where their values are counts, and no numbers.
            _RANK.fullmatch(key) and isinstance(item, list | dict)
            for key, item in data.items()
        )
    ):
        sizes = {key: data[key] for key in SIZE_KEYS if key in data}
        for key, item in data.items():
            if key not in sizes:
                match = _RANK.fullmatch(key)
                record = {**sizes, **item} if isinstance(item, dict) else item
                yield record, shown(key), int(match[1]) if match else None
    elif data != []:
        yield data, "", rank


def _part(item: Any, path: str, rank: int | None, log: IssueLog) -> MoeAssignments:
    """Return the assignments of one rank, from a record or from counts alone."""
    if not isinstance(item, dict):
        if not isinstance(item, list):
            log.error(path, f"{shown(repr(item))} is not a record", _EXAMPLE)
            return MoeAssignments()
        item, prefix, counts_by_layer = {}, path, _by_layer(item, path)
    else:
        prefix = f"{path}." if path else ""
        key = "layers" if item.get("layers") is not None else _key(item, COUNT_KEYS)
        others = {name: value for name, value in item.items() if name not in _META_KEYS}
        counts_by_layer = []
        if key is not None:
            counts_by_layer = _by_layer(item[key], f"{prefix}{key}", is_by_layer=key == "layers")
        elif any(map(_EXPERT.fullmatch, others)):
            counts_by_layer = _by_layer(others, path)
        else:
            log.error(path, "holds no counts of tokens", _EXAMPLE)
    stated_rank = _count(item, ("rank",), prefix, log)
    devices = _count(item, SIZE_KEYS, prefix, log)
    if devices == 0:
        fix = "write the number of devices that share experts"
        log.error(f"{prefix}{_key(item, SIZE_KEYS)}", "is 0", fix)
        devices = None
    records: list[ExpertTokens] = []
    for layer, counts, counts_path in counts_by_layer:
        tokens = _tokens(counts, counts_path, log)
        if tokens:
            owner = rank if stated_rank is None else stated_rank
            records.append(ExpertTokens(tokens, owner, layer, devices, isinstance(counts, dict)))
    dropped_key = _key(item, DROPPED_KEYS)
    dropped = item[dropped_key] if dropped_key else None
    if isinstance(dropped, list):
        counted = [_whole(each, f"{prefix}{dropped_key}[{n}]", log) for n, each in enumerate(dropped)]
        return MoeAssignments(tuple(records), sum(count for count in counted if count is not None))
    return MoeAssignments(tuple(records), _count(item, DROPPED_KEYS, prefix, log))


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


def _by_layer(counts: Any, path: str, *, is_by_layer: bool = False) -> list[tuple[str | None, Any, str]]:
    """Return (layer, counts, path) of counts that are given by layer, or may be."""
    items = counts.items() if isinstance(counts, dict) else ()
    if items and (is_by_layer or all(isinstance(value, list | dict) for _, value in items)):
        return [(name, _inner(value), f"{path}.{shown(name)}".lstrip(".")) for name, value in items]
    if isinstance(counts, list) and counts and all(isinstance(item, list | dict) for item in counts):
        return [(str(index), _inner(item), f"{path}[{index}]") for index, item in enumerate(counts)]
    return [(None, counts, path)]


def _inner(value: Any) -> Any:
    """Return the counts of a layer that is written as a mapping, else the value itself."""
    key = _key(value, COUNT_KEYS) if isinstance(value, dict) else None
    return value[key] if key else value


def _tokens(counts: Any, path: str, log: IssueLog) -> tuple[int, ...]:
    """Return counts in the order of experts, or nothing if one is damaged."""
    if not isinstance(counts, list | dict) or not counts:
        log.error(path, f"{shown(repr(counts))} is not a list of counts", _EXAMPLE)
        return ()
    by_expert = _by_expert(counts, path, log) if isinstance(counts, dict) else dict(enumerate(counts))
    inner_path = "{}.{}".format if isinstance(counts, dict) else "{}[{}]".format
    whole_counts = {
        expert: _whole(value, inner_path(path, expert).lstrip("."), log)
        for expert, value in by_expert.items()
    }
    if not whole_counts or None in whole_counts.values():
        return ()
    return tuple(whole_counts.get(expert) or 0 for expert in range(max(whole_counts) + 1))


def _by_expert(counts: dict[str, Any], path: str, log: IssueLog) -> dict[int, Any]:
    """Return counts by the number of their expert; other keys are reported, and too large numbers refused."""
    by_expert: dict[int, Any] = {}
    unknown = []
    for key, value in counts.items():
        inner = f"{path}.{shown(key)}".lstrip(".")
        match = _EXPERT.fullmatch(key)
        if match is None:
            unknown.append((shown(key), inner))
        elif int(match[1]) >= MOST_EXPERTS or int(match[1]) in by_expert:
            log.error(
                inner,
                "is not the number of an expert, or repeats one",
                "number the experts of a layer from 0",
            )
            return {}
        else:
            by_expert[int(match[1])] = value
    report_unknown_keys(unknown, ("expert_0", *_META_KEYS, "layers", *COUNT_KEYS), log)
    return by_expert
