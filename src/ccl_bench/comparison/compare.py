"""The comparison of runs with a baseline, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench import __version__
from ccl_bench.base.text import encode_json, json_decoder
from ccl_bench.comparison.changes import TOLERANCE, Change, find_changes, judge_shares
from ccl_bench.comparison.comparability import Comparability, judge_comparability
from ccl_bench.comparison.noise import CONFIDENCE
from ccl_bench.comparison.run_results import is_same_work
from ccl_bench.comparison.step_breakdown import Attribution, attribute_step
from ccl_bench.comparison.sweeps import SweepChange, compare_sweeps
from ccl_bench.comparison.thresholds import Judgement, judge_threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.comparison.run_results import RunResults
    from ccl_bench.comparison.thresholds import Threshold

SCHEMA_VERSION = 1

CROSSED = 5
"""Exit status if a threshold is exceeded."""

NOT_JUDGED = 3
"""Exit status if runs are not comparable, or a threshold cannot be judged."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One run against the baseline."""

    name: str
    """The run, as given."""
    comparability: Comparability
    changes: tuple[Change, ...]
    attribution: Attribution | None = None
    """Breakdown of the change of the step; None if details are missing or the runs not comparable."""
    judgements: tuple[Judgement, ...] = ()
    sweep: SweepChange | None = None
    """Throughput at equal interactivity; None if neither is a serving sweep, or they are not comparable."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs against a baseline."""

    baseline: str
    """The baseline, as given."""
    pairs: tuple[Pair, ...]
    tolerance: float = TOLERANCE
    """Relative change below which a change is called neither better nor worse."""
    confidence: float = CONFIDENCE
    """Share of intervals that contain the true difference."""
    tool_version: str = __version__
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def exit_status(self) -> int:
        """5 if a threshold is exceeded; 3 if runs are not comparable or one cannot be judged; else 0."""
        outcomes = {judgement.outcome for pair in self.pairs for judgement in pair.judgements}
        if "crossed" in outcomes:
            return CROSSED
        are_apart = any(
            pair.comparability.verdict == "not comparable" or (pair.sweep and pair.sweep.refused)
            for pair in self.pairs
        )
        return NOT_JUDGED if are_apart or "not judged" in outcomes else 0


def compare_runs(
    sides: Sequence[RunResults],
    names: Sequence[str],
    *,
    study: Sequence[str] = (),
    thresholds: Sequence[Threshold] = (),
    tolerance: float = TOLERANCE,
) -> Comparison:
    """Return the comparison of the first side with each of the others, in the metrics `names`."""
    baseline, *others = sides
    pairs = []
    for other in others:
        same = is_same_work(baseline, other)
        comparability = judge_comparability(baseline.fields, other.fields, study=study, is_same_run=same)
        are_comparable = comparability.verdict != "not comparable"
        results = baseline.results, other.results
        attribution = attribute_step(*results) if are_comparable else None
        changed = find_changes(*results, names, are_comparable=are_comparable, tolerance=tolerance)
        judged = judge_shares(changed, attribution, tolerance)
        judgements = tuple(judge_threshold(limit, judged) for limit in thresholds)
        sweep = compare_sweeps(baseline, other) if are_comparable else None
        pairs.append(Pair(other.name, comparability, judged, attribution, judgements, sweep))
    return Comparison(baseline.name, tuple(pairs), tolerance)


def to_json(comparison: Comparison) -> bytes:
    """Return a comparison as indented JSON."""
    return encode_json(comparison)


_DECODER = json_decoder(Comparison)


def from_json(text: bytes) -> Comparison:
    """Return the comparison in `text`; raise msgspec.ValidationError if it is not one."""
    return _DECODER.decode(text)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a comparison."""
    return msgspec.json.schema(Comparison)
