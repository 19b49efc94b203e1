"""Process groups as torch lists them in the operator `process_group:init`, in JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from ccl_bench.trace.values import whole

OPERATOR = "process_group:init"

_LARGEST_GROUP = 1 << 20
_DEFAULT = "0"


def listed_groups(text: object) -> list[dict[str, object]]:
    """Return the process groups in a JSON text, none if it was cut."""
    try:
        entries = msgspec.json.decode(text) if isinstance(text, str) else []
    except (msgspec.DecodeError, RecursionError):
        return []
    groups = entries if isinstance(entries, list) else []
    return [_process_group(entry) for entry in groups if isinstance(entry, dict)]


def _process_group(entry: dict[str, Any]) -> dict[str, object]:
    """Return one process group; the list of ranks is left empty for the group of all."""
    size, ranks = whole(entry.get("group_size")), recorded_numbers(entry.get("ranks"))
    is_all = entry.get("pg_name") == _DEFAULT and size is not None and 0 < size <= _LARGEST_GROUP
    if not ranks:
        ranks = list(range(size)) if is_all and size else None
    return {
        "name": str(entry.get("pg_name", "")),
        "description": str(entry.get("pg_desc", "")),
        "backend": str(entry.get("backend_config", "")),
        "size": len(ranks) if size is None and ranks else size,
        "ranks": ranks,
    }


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
