"""Numbers of things in words."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 rank`, `8 ranks` and the like, with thousands apart."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
