"""What a bundle may hold at most, and the names that files in it may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.store.bundle import CARD, PROVENANCE

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

NAME_BYTES = 240
"""Longest name of a file below a run; the header of an archive has room for 255 with its folder."""
FILE_NAME_BYTES = 100
"""Longest last part of a name, as the header of an archive has it."""
DEPTH = 16
"""Most parts of a name."""

RUN = "run"
"""Folder of an archive that holds the files of the run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that are refused when they are exceeded."""

    archive_bytes: int = 4 * GIB
    """Of the archive as it travels."""
    unpacked_bytes: int = 20 * GIB
    """Of everything in it."""
    files: int = 10_000
    """In the archive."""
    text_bytes: int = 16 * MIB
    """Of the results, and of the report."""
    small: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType({CARD: 256 * KIB, PROVENANCE: 4 * MIB})
    )
    """File → limit of its own."""

    def of(self, name: str) -> int:
        """Return the most bytes that a file of a bundle may have."""
        if name.startswith(f"{RUN}/"):
            return self.unpacked_bytes
        return self.small.get(name, self.text_bytes)


def unsafe(name: str) -> str:
    """Return why a file below a run may not be called so, empty where it may."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "leads out of the run or is no plain path"
    if not name.isprintable() or "\\" in name:
        return "holds characters that are not printable, or a backslash"
    if any(part.startswith(".") for part in parts):
        return "is hidden"
    if len(parts) > DEPTH or len(name.encode()) > NAME_BYTES or len(parts[-1].encode()) > FILE_NAME_BYTES:
        return f"is longer than {NAME_BYTES} bytes, {FILE_NAME_BYTES} in its last part, or {DEPTH} folders"
    return ""
