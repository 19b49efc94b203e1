"""Lengths of time as text."""

from __future__ import annotations

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


def text(length_ns: int) -> str:
    """Return a length of time in three digits with a fitting unit."""
    for scale, unit in _UNITS:
        if abs(length_ns) >= scale:
            return f"{length_ns / scale:.3g} {unit}"
    return f"{length_ns} ns"
