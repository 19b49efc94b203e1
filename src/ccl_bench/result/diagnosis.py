"""The verdict on a run and its diagnoses: where the step goes, what to change, and what that is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from ccl_bench.base.findings import Issue  # noqa: TC001 (msgspec reads the types of fields)
from ccl_bench.base.text import encode_json
from ccl_bench.result import Displayed

PARTS = ("compute", "waiting", "transfer", "copies", "idle")
"""Parts of a step, in order: an instant that is of several belongs to `compute`, then to `transfer`."""


@dataclass(frozen=True, slots=True)
class Verdict(Displayed):
    """Where the time of the mean step goes."""

    step_s: float
    """Length of a step, s."""
    parts: dict[str, float]
    """Part → share of the step, mean over ranks and steps; they add up to 1."""
    ranks: int
    """Ranks that the shares rest on."""
    steps: int
    on_device: bool
    """Whether work of a device is meant; else that of CPU threads."""
    devices: str = ""
    """The devices, such as `8 x NVIDIA A100`."""
    unattributed: float = 0.0
    """Share of the step in `transfer` that may be waiting: the traces do not show which."""
    traced_step_s: float | None = None
    """Length of a step in the traces, s, where a side file gives another one."""
    is_whole_trace: bool = False
    """Whether all of the trace counts as one step."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One operation that shows a cause."""

    rank: int | None
    step: int | None
    operation: str
    start_ns: int
    """Start on the clock that all ranks share, ns; what is meant may be the time before an operation."""
    end_ns: int


@dataclass(frozen=True, slots=True)
class Opportunity:
    """Something to change, with what it is worth."""

    name: str
    """Name of the rule."""
    kind: str
    """Family of rules, such as `communication`."""
    title: str
    """What is the case, in one sentence."""
    remedy: str
    """What to do about it, in one sentence."""
    ranks: list[int]
    """Ranks that cause it; empty where all do."""
    steps: list[int]
    """Steps in which it is seen."""
    share: float | None
    """Gain over the length of the replayed step."""
    gain_s: float | None
    """Time of a mean step that the change saves, s, from the replay; None where that is unknown."""
    gain_error: float | None
    """Half of the 95 % interval of the gain, with the error of the replay, s; None for a single step, and
    where steps are left out."""
    change: str
    """What the replay changed."""
    evidence: list[Evidence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Diagnosed(Displayed):
    """What `ccl-bench diagnose` answers for one run."""

    run: str
    verdict: Verdict | None
    """None where the traces do not show where a step goes; `why_no_verdict` says why."""
    diagnoses: list[Opportunity] = field(default_factory=list)
    """Most gain first; unknown gains last."""
    silent: dict[str, str] = field(default_factory=dict)
    """Rule that reports nothing → why."""
    why_no_verdict: str = ""
    why_no_gains: str = ""
    """Why no gain is known: the replay explains too little, or there is nothing to replay."""
    replay_error: float | None = None
    """Replayed over recorded step, less 1."""
    unexplained: float | None = None
    """Share of the recorded step that the replay does not explain."""
    steps: list[int] = field(default_factory=list)
    findings: list[Issue] = field(default_factory=list)


def to_json(diagnosed: Diagnosed) -> bytes:
    """Return diagnoses as indented JSON."""
    return encode_json(diagnosed)
