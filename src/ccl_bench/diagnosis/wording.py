"""Words that the titles of diagnoses share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = 6
"""Ranks that are named at most."""


def ranks_do(ranks: Sequence[int], one: str, several: str) -> str:
    """Return `Rank 3 comes` or `Ranks 0 and 6 come`, with the verb for one and for several."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]} {one}"
    named = [str(rank) for rank in sorted(ranks)]
    if len(named) > _NAMED:
        return f"{len(named)} ranks, such as {', '.join(named[:_NAMED])}, {several}"
    return f"Ranks {', '.join(named[:-1])} and {named[-1]} {several}"
