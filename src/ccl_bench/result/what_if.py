"""What scenarios are worth in one run: what `ccl-bench what-if` answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.text import encode_json
from ccl_bench.result import Displayed

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """How long steps take in one scenario."""

    name: str
    t_s: float
    """Mean over steps, s."""
    step_s: list[float]
    gain_s: float
    """Time of a step that the scenario saves, s; negative where it takes longer."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How much of the slowdown some operations explain, as shares of it."""

    rem: float
    """By how much of the slowdown the step gets shorter when they alone are ideal."""
    add: float
    """How much of the slowdown comes back when they alone are not ideal."""
    workers: list[tuple[int, int]] = field(default_factory=list)
    """Rank and stage of each, the worst first."""


@dataclass(frozen=True, slots=True)
class OnPath:
    """What one kind of work of one worker takes of the critical path."""

    worker: str
    """Rank; of a table of operations rank and stage, as `rank/stage`."""
    kind: str
    """`host`, `compute`, `transfer`, `copies` or `unexplained`."""
    took_s: float
    share: float


@dataclass(frozen=True, slots=True)
class CriticalPath(Displayed):
    """What the last end of a step waited for, back to its begin; means over steps."""

    length_s: float
    parts: list[OnPath]
    """The largest first."""
    hops: float
    """Changes from one worker to another."""
    sensitivities: dict[str, float]
    """Worker and kind → by how much the step gets shorter if it takes a tenth less, s."""
    second_s: float
    """Length of the path if the first of the parts took no time, s."""
    second: list[OnPath]
    slack_s: dict[str, float]
    """Worker → how much later it could reach every meeting of a step and still not be the last, s."""


@dataclass(frozen=True, slots=True)
class WhatIf(Displayed):
    """The answer for one run; times are means over steps, s."""

    run: str
    t_recorded_s: float
    t_original_s: float
    """Replayed with the recorded durations, and no time between an operation and what it waits for."""
    t_ideal_s: float
    slowdown: float
    """S: original over ideal."""
    launch_slowdown: float
    """Recorded over original: what the time between operations costs."""
    idealisation: str
    replay_error: float
    """Original over recorded, less 1."""
    unexplained: float
    """Share of the recorded step that the replay does not explain."""
    m_w: Explained | None
    """What the worst workers explain; None where there is one, or nothing is slow."""
    m_s: Explained | None
    """What the last pipeline stage explains; None where there is one, or nothing is slow."""
    by: dict[str, dict[str, float]]
    """Kind → name → slowdown where all but this takes its ideal time."""
    step_s: list[float]
    """Length of each step, replayed as recorded, s."""
    critical_path: CriticalPath
    scenarios: list[ScenarioAnswer]
    steps: list[int]
    findings: list[Finding] = field(default_factory=list)


def to_json(answer: WhatIf) -> bytes:
    """Return an answer as indented JSON."""
    return encode_json(asdict(answer))
