"""What an allocator's counters are called: by PyTorch, torchtitan and scripts, with or without a unit."""

from __future__ import annotations

import re

_WORDS = {
    "peak_allocated": ("allocated_bytes_all_peak", "max_memory_allocated", "max_allocated"),
    "peak_active": ("active_bytes_all_peak", "max_active"),
    "peak_reserved": ("reserved_bytes_all_peak", "max_memory_reserved", "max_reserved"),
    "peak_inactive_split": ("inactive_split_bytes_all_peak",),
    "allocated": ("allocated_bytes_all_current", "memory_allocated"),
    "active": ("active_bytes_all_current",),
    "reserved": ("reserved_bytes_all_current", "memory_reserved"),
    "inactive_split": ("inactive_split_bytes_all_current",),
}
_SIZES = {
    word: f"{name}_bytes" for name, words in _WORDS.items() for word in (name, f"{name}_memory", *words)
}
_COUNTS = {
    "allocation_all_allocated": "allocations",
    "allocation_all_freed": "frees",
    "num_alloc_retries": "alloc_retries",
    "num_ooms": "ooms",
}
_PREFIXES = {"bytes": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_PREFIXES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNIT = re.compile(rf"_({'|'.join(_PREFIXES)})$")


def field_of(key: str) -> tuple[str, int | None]:
    """Return the field that a key stands for, empty where none, and its unit in bytes where it names one."""
    plain = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")
    if plain in _COUNTS:
        return _COUNTS[plain], 1
    if plain in _SIZES:
        return _SIZES[plain], None
    unit = _UNIT.search(plain)
    if unit and plain[: unit.start()] in _SIZES:
        return _SIZES[plain[: unit.start()]], _PREFIXES[unit[1]]
    return "", None
