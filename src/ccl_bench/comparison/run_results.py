"""The results of one run in a comparison, with its card and its samples."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.card.comparison_fields import Fields
    from ccl_bench.result import Result
    from ccl_bench.result.sweep import Sweep


@dataclass(frozen=True, slots=True)
class RunResults:
    """One run of a comparison."""

    name: str
    """The place as the user gave it."""
    results: dict[str, Result]
    fields: Fields = field(default_factory=dict)
    """Fields of its card and metadata."""
    sweep: Sweep | None = None
    """Its results of a serving benchmark under several loads."""
    why_no_sweep: str = ""
    """Why several results form no sweep."""

    @property
    def traces(self) -> frozenset[str]:
        """Hashes of the trace files behind the results."""
        return frozenset(t.sha256 for result in self.results.values() for t in result.provenance.traces)

    @property
    def statements(self) -> frozenset[str]:
        """Hashes of card and metadata behind the results."""
        files = [each for result in self.results.values() for each in result.provenance.files.items()]
        ends = (".yaml", ".yml", ".toml", "run_metadata.json")  # only these identify the workload
        return frozenset(digest for name, digest in files if name.endswith(ends))


def is_same_work(one: RunResults, other: RunResults) -> bool:
    """Whether two sides have the same recording, or the same card and metadata."""
    return any(
        bool(one_side) and one_side == other_side
        for one_side, other_side in ((one.traces, other.traces), (one.statements, other.statements))
    )


_PER_STEP = re.compile(r"per_step(_\w+)?")
_EACH = re.compile(r"values(_\w+)?")

_TO_UNIT = {("ratio", "pct"): 0.01, ("%", "ratio"): 100.0}
"""(unit of the metric, suffix of the detail) → factor; a variant of a metric shares its details."""


def samples_of(result: Result) -> list[float]:
    """Return the samples in a result's details, in its unit and in order; empty for a single number.

    They are `per_step_*`, {step: number}, or `values_*`, a list with one number for each request.
    """
    for name, detail in result.details.items():
        each: object = None
        if _PER_STEP.fullmatch(name) and isinstance(detail, dict):
            each = list(detail.values())
        elif _EACH.fullmatch(name) and isinstance(detail, list):
            each = detail
        if isinstance(each, list) and each and all(isinstance(value, int | float) for value in each):
            factor = _TO_UNIT.get((result.unit, name.rpartition("_")[2]), 1.0)
            return [factor * value for value in each]
    return []
