"""The analysis of a hang: missing ranks, waiting ranks, and divergences that only follow."""

from __future__ import annotations

from dataclasses import dataclass, field

from ccl_bench.base.findings import Issue  # noqa: TC001 (msgspec reads the types of fields)
from ccl_bench.base.text import encode_json

MISSING, MISMATCH, NO_DUMP, UNFINISHED = "missing", "mismatch", "no dump", "unfinished"
"""Kinds of divergence: a member did not call, called something else, left no dump; or all are there."""

EMPTY_DUMP, DAMAGED_DUMP, OLDER_DUMP = "empty dump", "damaged dump", "older dump"
"""More kinds: a member's dump has no call, is damaged, or was written before the call that others wait in."""

OVERWRITTEN = "overwritten"
"""Kind of a suspect whose calls were all overwritten."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a call stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    """One communication call of one rank."""

    rank: int
    group: str
    """Name of the process group."""
    description: str
    """What the group is for."""
    sequence: int | None
    """Number of the collective in its group; None of a send or receive."""
    operation: str
    shapes: list[list[int]]
    """Shapes of the sent tensors, or else of the received ones."""
    dtypes: list[str]
    state: str
    created_ns: int
    """Time of the call, ns on the clock of its host."""
    frame: Frame | None
    """The program's own innermost frame; None if no stack was recorded."""
    stack: list[Frame] = field(default_factory=list)
    """The whole stack, the innermost frame first."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that others wait for."""

    rank: int
    last: Call | None
    """Its last call; None if it made none, or left no dump."""
    waits_in: int | None = None
    """Index of the divergence in which it waits itself; None if it does not wait."""


@dataclass(frozen=True, slots=True)
class IncompleteDump:
    """A member whose dump does not show whether it called."""

    rank: int
    kind: str
    """`empty dump`, `damaged dump` or `older dump`."""
    last: Call | None
    """The last call in it; None if it holds none, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank to check first."""

    rank: int
    kind: str
    """`missing`, `mismatch`, `no-dump`, `empty-dump`, `damaged-dump`, `older-dump` or `overwritten`."""
    group: str
    """Name of the process group in which others wait for it, or it differs."""
    sequence: int
    operation: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """A call from which on the members of a group behave differently."""

    kind: str
    """`missing`, `mismatch`, `no dump`, `empty dump`, `damaged dump`, `older dump` or `unfinished`.

    Of several incomplete dumps it is that of the first rank.
    """
    group: str
    """Name of the process group."""
    description: str
    """What the group is for."""
    members: list[int]
    sequence: int
    """Number of the collective in its group; of sends and receives that of the message between the two."""
    operation: str
    """The call of most members."""
    waiting: list[Call]
    """Calls of ranks that cannot go on."""
    missing: list[Missing] = field(default_factory=list)
    differing: list[Call] = field(default_factory=list)
    """Calls that differ from that of most members."""
    without_dump: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    """Members whose records of the group were all overwritten: whether they called is unknown."""
    follows_from: int | None = None
    """Index of the divergence that explains this one; None for a cause."""
    is_mutual: bool = False
    """Whether ranks wait for each other in a cycle, so that it is one of several possible causes."""
    is_p2p: bool = False
    possible: list[int] = field(default_factory=list)
    """Ranks that may also be members: no dump lists the members, but these ranks used the group."""
    incomplete: list[IncompleteDump] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hang:
    """The answer of `ccl-bench hang` for one run."""

    run: str
    ranks: list[int]
    """Ranks with a dump that can be read."""
    without_dump: list[int]
    """Ranks of the job without a dump, as far as other dumps show them."""
    calls: int
    """Calls in all dumps."""
    culprits: list[int]
    """Ranks to check first; empty if no rank is missing and no call differs."""
    divergences: list[Divergence] = field(default_factory=list)
    """Causes first, in order of time."""
    suspects: list[Suspect] = field(default_factory=list)
    """Why each culprit is one, and where."""
    damaged: list[int] = field(default_factory=list)
    """Ranks whose dump cannot be read, or only in part."""
    unproven: list[int] = field(default_factory=list)
    """Ranks whose dumps do not show every call that other members of their groups made."""
    findings: list[Issue] = field(default_factory=list)


def to_json(hang: Hang) -> bytes:
    """Return the answer as indented JSON."""
    return encode_json(hang)
