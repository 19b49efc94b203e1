"""What was gathered of a run for its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.result.step_choice import EVERY_STEP, StepChoice

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding
    from ccl_bench.run.trace_tables import Reduced


@dataclass(slots=True)
class Evidence:
    """Everything that metrics may ask for, by the name they ask with."""

    inputs: dict[str, Any] = field(default_factory=dict)
    """Tables and facts."""
    traces: list[Reduced] = field(default_factory=list)
    """What each trace came to."""
    findings: list[Finding] = field(default_factory=list)
    """Everything that is wrong with the run or its traces."""
    given: frozenset[str] = frozenset()
    """Inputs that rest on no trace."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Input that rests on no trace → the files behind it, each with its SHA-256."""
    asked: dict[str, set[str]] = field(default_factory=dict)
    """Table across ranks → the facts that it was computed with."""
    broken: dict[str, Exception] = field(default_factory=dict)
    """Table across ranks → why it could not be computed."""
    choice: StepChoice = EVERY_STEP
    """Which steps numbers rest on."""
