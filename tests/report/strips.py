"""Strips of a step: read back from what a report holds, and made with as much as a page can hold."""

from __future__ import annotations

from typing import NamedTuple

from ccl_bench.evaluate.strip import in_order
from ccl_bench.result.drill_down import KINDS, Lane, Strip, StripName, StripRank


class Piece(NamedTuple):
    """One piece, in units of its strip."""

    start: int
    length: int
    kind: str
    name: int
    awaits: str
    count: int
    busy: int


def pieces_of(lane: Lane) -> list[Piece]:
    """Return the pieces of a lane."""
    found, start = [], 0
    for text in lane.pieces.split():
        delta, length, called, *rest = text.split(",")
        start += int(delta)
        awaits = rest[0][1:] if len(rest) == 1 else ""
        count, busy = map(int, rest) if len(rest) == 2 else (1, int(length))
        found.append(Piece(start, int(length), KINDS[called[0]], int(called[1:]), awaits, count, busy))
    return found


def made_strip(ranks: int, pieces_each: int, late: dict[int, float], per_node: int = 8) -> Strip:
    """Return a strip of so many ranks with so many pieces each, some of which are late."""
    kinds = "ctwm"
    length = 1_000_000
    each = length // pieces_each
    lanes = [
        " ".join(
            f"{each if number else 0},{each - each // (3 + lane)},"
            f"{kinds[number % 4]}{number % 7},12,{each // 2}"
            for number in range(pieces_each // 2)
        )
        for lane in range(2)
    ]
    return Strip(
        "3",
        100,
        length,
        "one trace has one clock",
        [StripName(f"kernel_{number}") for number in range(7)],
        in_order(
            [
                StripRank(
                    str(rank),
                    rank,
                    length - rank,
                    [Lane(f"stream {number}", text) for number, text in enumerate(lanes)],
                    dict.fromkeys(
                        ("compute", "fused", "exposed_communication", "exposed_memory", "idle"), 0.2
                    ),
                    rank // per_node,
                    0.3,
                    late.get(rank, 0.0),
                )
                for rank in range(ranks)
            ]
        ),
        ranks * pieces_each,
        ranks * pieces_each,
    )
