"""The answer of `ccl-bench what-if` for one run: gains of scenarios."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.text import encode_json
from ccl_bench.result import Displayed

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """Step times in one scenario."""

    name: str
    t_s: float
    """Mean over steps, s."""
    step_s: list[float]
    gain_s: float
    """Time of a step that the scenario saves, s; negative if it takes longer."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Share of the slowdown that some operations explain."""

    rem: float
    """Share of the slowdown that disappears if only they are ideal."""
    add: float
    """Share of the slowdown that remains if all others are ideal."""
    workers: list[tuple[int, int]] = field(default_factory=list)
    """Rank and stage of each, the slowest first."""


@dataclass(frozen=True, slots=True)
class OnPath:
    """The part of the critical path in one kind of work of one worker."""

    worker: str
    """Rank; of a table of operations rank and stage, as `rank/stage`."""
    kind: str
    """`host`, `compute`, `transfer`, `copies` or `unexplained`."""
    took_s: float
    share: float


@dataclass(frozen=True, slots=True, repr=False)
class CriticalPath(Displayed):
    """The critical path from the end of a step back to its start; means over steps."""

    length_s: float
    parts: list[OnPath]
    """The largest first."""
    hops: float
    """Changes from one worker to another."""
    sensitivities: dict[str, float]
    """Worker and kind → gain of the step if it takes a tenth less, s."""
    second_s: float
    """Length of the path if the first of the parts took no time, s."""
    second: list[OnPath]
    slack_s: dict[str, float]
    """Worker → slack: how much later it could reach every meeting of a step without being last, s."""


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf(Displayed):
    """The answer for one run; times are means over steps, s."""

    run: str
    t_recorded_s: float
    t_original_s: float
    """Replayed with the recorded durations, without delays between operations and their causes."""
    t_ideal_s: float
    slowdown: float
    """S: original over ideal."""
    launch_slowdown: float
    """Recorded over original: the cost of the time between operations."""
    idealisation: str
    replay_error: float
    """Original over recorded, less 1."""
    unexplained: float
    """Share of the recorded step that the replay does not explain."""
    m_w: Explained | None
    """Share that the slowest workers explain; None if there is only one, or none is slow."""
    m_s: Explained | None
    """Share that the last pipeline stage explains; None if there is only one, or none is slow."""
    by: dict[str, dict[str, float]]
    """Kind → name → slowdown if all others take their ideal time."""
    step_s: list[float]
    """Length of each step, replayed as recorded, s."""
    critical_path: CriticalPath
    scenarios: list[ScenarioAnswer]
    steps: list[int]
    findings: list[Finding] = field(default_factory=list)


def to_json(answer: WhatIf) -> bytes:
    """Return an answer as indented JSON."""
    return encode_json(asdict(answer))
