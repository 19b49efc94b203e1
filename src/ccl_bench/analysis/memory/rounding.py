"""How large a block the caching allocator gives for what is asked of it.

The rules of PyTorch's CUDACachingAllocator: sizes are rounded up, and a free block is split unless
too little of it would be left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SMALLEST = 512
"""Sizes are multiples of it, bytes."""

SMALL_POOL = 1 << 20
"""Largest block of the pool for small blocks; in the other one, what is left by a split is larger."""

_LAST_INTERVAL = 15
_DIVISIONS = "roundup_power2_divisions."


@dataclass(frozen=True, slots=True)
class Rounding:
    """The settings that decide on sizes."""

    divisions: Mapping[int, int] = field(default_factory=dict)
    """Size in MiB, a power of two → parts that the space up to the next power of two is divided into."""
    max_split: int | None = None
    """Blocks of this size and above are not split; None for no limit."""

    def rounded(self, asked: int) -> int:
        """Return the least size of the block for so many bytes."""
        if asked < SMALLEST:
            return SMALLEST
        interval = min(max(asked.bit_length() - 21, 0), _LAST_INTERVAL)
        divisions = self.divisions.get(1 << interval, 0)
        if divisions > 1 and asked > SMALLEST * divisions:
            return _next_division(asked, divisions)
        return -(-asked // SMALLEST) * SMALLEST

    def block(self, rounded: int, free: int) -> int:
        """Return the size of the block that is made of a free one in a segment of fixed size."""
        left = free - rounded
        if rounded <= SMALL_POOL:
            return rounded if left >= SMALLEST else free
        is_split = left > SMALL_POOL and (self.max_split is None or rounded < self.max_split)
        return rounded if is_split else free


def _next_division(asked: int, divisions: int) -> int:
    floor = 1 << (asked.bit_length() - 1)
    if asked == floor:
        return asked
    step = floor >> (divisions.bit_length() - 1)
    return -(-asked // step) * step if step else floor << 1


def rounding(settings: Mapping[str, int]) -> Rounding:
    """Return the rules under these settings of the allocator."""
    divisions = {
        int(name.removeprefix(_DIVISIONS)): value
        for name, value in settings.items()
        if name.startswith(_DIVISIONS) and name.removeprefix(_DIVISIONS).isdecimal()
    }
    limit = settings.get("max_split_size", -1)
    return Rounding(divisions, limit if limit > 0 else None)
