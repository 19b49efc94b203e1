"""Why a job hangs: who is missing where, who waits for whom, and what only follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from ccl_bench.base.findings import Issue  # noqa: TC001 (msgspec reads the types of fields)
from ccl_bench.base.text import encode_json

MISSING, MISMATCH, NO_DUMP, UNFINISHED = "missing", "mismatch", "no dump", "unfinished"
"""Kinds of divergence: a member did not call, called something else, left no dump; or all are there."""


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
    """Shapes of what is sent, or of what is received where nothing is."""
    dtypes: list[str]
    state: str
    created_ns: int
    """When it was called, ns on the clock of its host."""
    frame: Frame | None
    """The program's own innermost frame; None where no stack was recorded."""
    stack: list[Frame] = field(default_factory=list)
    """The whole stack, the innermost frame first."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that others wait for."""

    rank: int
    last: Call | None
    """Its last call; None where it has made none, or left no dump."""
    waits_in: int | None = None
    """Place of the divergence in which it waits itself; None where it waits for nobody."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A place from which on the members of a group do not do the same."""

    kind: str
    """`missing`, `mismatch`, `no dump` or `unfinished`."""
    group: str
    """Name of the process group."""
    description: str
    """What the group is for."""
    members: list[int]
    sequence: int
    """Number of the collective in its group; of sends and receives that of the message between the two."""
    operation: str
    """What most members called."""
    waiting: list[Call]
    """Calls of ranks that cannot go on."""
    missing: list[Missing] = field(default_factory=list)
    differing: list[Call] = field(default_factory=list)
    """Calls that are not what most members called."""
    without_dump: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    """Members whose records of the group were all overwritten: whether they called is unknown."""
    follows_from: int | None = None
    """Place of the divergence that explains this one; None of a cause."""
    is_mutual: bool = False
    """Whether ranks wait for each other in a circle, so that it is one of several places to look at."""
    is_p2p: bool = False
    possible: list[int] = field(default_factory=list)
    """Ranks that may be members too: no dump lists the members, and these are who used the group."""


@dataclass(frozen=True, slots=True)
class Hang:
    """What `ccl-bench hang` answers for one run."""

    run: str
    ranks: list[int]
    """Ranks with a dump."""
    without_dump: list[int]
    """Ranks of the job without one, as far as the dumps show who else there is."""
    calls: int
    """Calls in all dumps."""
    culprits: list[int]
    """Ranks to look at first; empty where nobody is missing and nothing differs."""
    divergences: list[Divergence] = field(default_factory=list)
    """Causes first, in order of time."""
    findings: list[Issue] = field(default_factory=list)


def to_json(hang: Hang) -> bytes:
    """Return the answer as indented JSON."""
    return encode_json(hang)
