"""The verdict on a run and its diagnoses: step breakdown, opportunities, and their gains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Issue  # noqa: TC001 (msgspec reads the types of fields)
from ccl_bench.base.text import encode_json
from ccl_bench.result import Displayed

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = ("compute", "waiting", "transfer", "copies", "idle")
"""Parts of a step, in order: an instant with several activities belongs to `compute`, then to `transfer`."""


@dataclass(frozen=True, slots=True)
class IdlePart:
    """A part of the idle time of devices, by what their hosts did meanwhile."""

    cause: str
    """Such as `launching`, `data loading`, `unnamed pause`, `no host recorded` or `unknown`."""
    share: float
    """Share of the step, mean over ranks."""
    name: str | None = None
    """The range, operator or call with most of that time; None without one."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits, who is late, and what the step would gain without."""

    latest: list[int]
    """The rank whose host or device arrives later than its peers for most time, or none."""
    longest: list[int]
    """The rank that waits longest, or none."""
    gain_of_latest_s: float
    """Gain if that rank took the times of the other ranks, s."""
    gain_of_all_s: float
    """Gain if all ranks took the median of their times, s."""


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Displayed):
    """The breakdown of the mean step."""

    step_s: float
    """Length of a step, s."""
    parts: dict[str, float]
    """Part → share of the step, mean over ranks and steps; they add up to 1."""
    ranks: int
    """Number of ranks behind the shares."""
    steps: int
    on_device: bool
    """Whether the parts are work on a device, or else on CPU threads."""
    devices: str = ""
    """The devices that worked, such as `8 x NVIDIA A100`."""
    unattributed: float = 0.0
    """Share of the step in `transfer` that may be waiting: the traces do not show which."""
    traced_step_s: float | None = None
    """Length of a step in the traces, s, if a side file states another one."""
    is_whole_trace: bool = False
    """Whether all of the trace counts as one step."""
    idle: list[IdlePart] = field(default_factory=list)
    """The parts of `idle`, the largest first, which add up to it; none without a device or in inspections."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One operation that shows a cause."""

    rank: int | None
    step: int | None
    operation: str
    start_ns: int
    """Start on the common clock of all ranks, ns; the evidence may be the time before an operation."""
    end_ns: int


@dataclass(frozen=True, slots=True)
class Opportunity:
    """A possible change, with its gain."""

    name: str
    """Name of the rule."""
    kind: str
    """Family of rules, such as `communication`."""
    title: str
    """The problem, in one sentence."""
    remedy: str
    """The fix, in one sentence."""
    ranks: list[int]
    """Ranks that cause it; empty if all do."""
    steps: list[int]
    """Steps in which it was detected."""
    share: float | None
    """Gain over the length of the replayed step."""
    gain_s: float | None
    """Time of a mean step that the change saves, s, from the replay; None if unknown."""
    gain_error: float | None
    """Half of the 95 % interval of the gain, with the error of the replay, s; None for a single step, and
    where steps are left out."""
    change: str
    """The change in the replay."""
    evidence: list[Evidence] = field(default_factory=list)


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosed(Displayed):
    """The answer of `ccl-bench diagnose` for one run: its diagnoses, with the verdict before them."""

    run: str
    verdict: Verdict | None
    """None if the traces do not show the step breakdown; `why_no_verdict` states why."""
    diagnoses: list[Opportunity] = field(default_factory=list)
    """Most gain first; unknown gains last."""
    silent: dict[str, str] = field(default_factory=dict)
    """Rule without a report → reason."""
    why_no_verdict: str = ""
    why_no_gains: str = ""
    """Why no gain is known: the replay explains too little, or there is nothing to replay."""
    replay_error: float | None = None
    """Replayed over recorded step, less 1."""
    unexplained: float | None = None
    """Share of the recorded step that the replay does not explain."""
    steps: list[int] = field(default_factory=list)
    findings: list[Issue] = field(default_factory=list)
    waiting: Waiting | None = None
    """None if no rank waits for another, or gains are unknown."""

    def __iter__(self) -> Iterator[Opportunity]:
        return iter(self.diagnoses)

    def __len__(self) -> int:
        return len(self.diagnoses)


def to_json(diagnosed: Diagnosed) -> bytes:
    """Return diagnoses as indented JSON."""
    return encode_json(diagnosed)
