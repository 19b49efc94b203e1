"""Recognise a profile of XLA by its first bytes: a plane, and the name that such planes have."""

from __future__ import annotations

_FIRST_PLANE = b"\x0a"
"""The tag of a plane, which is field 1 of the file."""

_NAMES = (b"/host:metadata", b"/host:CPU", b"/device:TPU:", b"/device:GPU:", b"Task Environment")

_HEAD_BYTES = 4096
"""Bytes in which the name of the first plane stands."""


def recognises(head: bytes) -> bool:
    """Whether a file that begins with these bytes is such a profile."""
    beginning = head[:_HEAD_BYTES]
    return beginning[:1] == _FIRST_PLANE and any(name in beginning for name in _NAMES)
