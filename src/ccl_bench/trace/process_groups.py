"""Process groups as torch lists them in the operator `process_group:init`, in JSON."""

from __future__ import annotations

import msgspec

from ccl_bench.trace.values import whole

OPERATOR = "process_group:init"

_LARGEST_GROUP = 1 << 20
"""Ranks of a group that are listed where the trace gives their number alone; no job has more."""


def listed_groups(text: object) -> list[dict[str, object]]:
    """Return the process groups in a JSON text, none if it was cut."""
    try:
        entries = msgspec.json.decode(text) if isinstance(text, str) else []
    except (msgspec.DecodeError, RecursionError):
        return []
    groups: list[dict[str, object]] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        size, ranks = whole(entry.get("group_size")), recorded_numbers(entry.get("ranks"))
        if not ranks:  # torch lists no ranks of the group of all, which it calls "0"
            is_all = entry.get("pg_name") == "0" and size is not None and 0 < size <= _LARGEST_GROUP
            ranks = list(range(size)) if is_all and size else None
        group: dict[str, object] = {
            "name": str(entry.get("pg_name", "")),
            "description": str(entry.get("pg_desc", "")),
            "backend": str(entry.get("backend_config", "")),
            "size": len(ranks) if size is None and ranks else size,
            "ranks": ranks,
        }
        groups.append(group)
    return groups


def recorded_numbers(value: object) -> list[int] | None:
    """Return a recorded list of numbers; None if it is absent or was cut (`...`)."""
    if isinstance(value, str):
        inner = value.strip()
        if not (inner.startswith("[") and inner.endswith("]")) or "..." in inner:
            return None
        value = [part for part in inner[1:-1].split(",") if part.strip()]
    if not isinstance(value, list):
        return None
    numbers = [whole(part) for part in value]
    return None if None in numbers else [number for number in numbers if number is not None]
