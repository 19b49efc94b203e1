"""What scenarios are worth in one run: what `ccl-bench what-if` answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import msgspec

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
class WhatIf:
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
    scenarios: list[ScenarioAnswer]
    steps: list[int]
    findings: list[Finding] = field(default_factory=list)


def to_json(found: WhatIf) -> bytes:
    """Return an answer as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(asdict(found)), indent=2)
