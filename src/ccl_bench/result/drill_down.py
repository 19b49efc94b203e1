"""What readers of a report look into, as plain data: the strip of a step, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of a device, or thread of a CPU."""

    name: str
    """Such as `stream 7`."""
    pieces: str
    """Pieces in order of start, apart by blanks.

    A piece is `DELTA,LENGTH,KIND NAME` without the blank, in units of the strip: its start after that of the
    piece before it (of the first, after the start of the strip), its length, the letter of its kind, and
    the number of its name. `,@RANK` follows where it waits for that rank, `,COUNT,BUSY` where it stands
    for so many pieces that take so long together: `120,35,c4 80,900,w7,@6 950,12,c4,9,8`.
    """


@dataclass(frozen=True, slots=True)
class StripRank:
    """What one rank did."""

    rank: str
    start: int
    """When its step began, in units of the strip after the start of the strip."""
    length: int
    """How long its step took, in units of the strip."""
    lanes: list[Lane]
    parts_s: dict[str, float]
    """Part of the step → its time, s; together they are the step."""
    node: int | None = None
    """Number of the node; None where the ranks of a node are unknown."""
    waited_s: float | None = None
    """Time that it waited in collectives of the step, s; None where it is unknown."""
    late_s: float | None = None
    """How much less it waited than the rank that waited most, s."""


@dataclass(frozen=True, slots=True)
class StripName:
    """What a piece is called."""

    text: str
    size_bytes: int | None = None
    """Message of a call, bytes."""


KINDS = {
    "c": "compute",
    "f": "fused",
    "t": "transfer",
    "n": "communication",
    "w": "waiting",
    "m": "memory",
}
"""Letter of a kind → its name: `communication` where waiting and transfer are not known apart."""


@dataclass(frozen=True, slots=True)
class Strip:
    """All ranks in one step, on one clock."""

    step: str
    unit_ns: int
    """Unit of all its times, ns."""
    length: int
    """From the first rank's start to the last rank's end, in units."""
    clocks: str
    """How the ranks' clocks were put together."""
    names: list[StripName]
    ranks: list[StripRank] = field(default_factory=list)
    """Nodes with late ranks first, and on a node late ranks first, where they are many; else by number."""
    pieces: int = 0
    """Pieces of work in the step."""
    drawn: int = 0
    """Pieces that are left, each for one or several."""
    others: int = 0
    """Traces without that step."""
