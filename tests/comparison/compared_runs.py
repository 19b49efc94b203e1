"""Runs whose difference is known: one plan, and what is changed in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench import metrics
from ccl_bench.comparison.compare import Comparison, compare_runs
from ccl_bench.comparison.load_results import load_results
from ccl_bench.comparison.step_breakdown import DIVIDED_METRICS
from ccl_bench.testing import Plan, write_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccl_bench.comparison.run_results import RunResults

STEP = "iteration_wall_clock_time"
JUDGED = (
    STEP, "forward_time", "backward_time", "throughput_tokens_sec", "straggler_lag_16",
    "bandwidth_utilization_allreduce", "bandwidth_utilization_allgather", *DIVIDED_METRICS,
)  # fmt: skip
"""Metrics in which a known difference shows, and those that say where in the step."""

PLAN = Plan(dp_shard=2, tp=2, steps=8, layers=2, jitter_ns=30_000)
"""Four ranks, eight steps of about 3.2 ms that differ by about 1 %."""


def written(folder: Path, **changed: Any) -> Path:
    """Write the plan with some of its values changed."""
    write_run(replace(PLAN, **changed), folder)
    return folder


@cache
def side(folder: Path, *names: str) -> RunResults:
    """Return one side with all metrics, or those named; no test changes a run that it has written."""
    return load_results(str(folder), names or metrics.load().names(), jobs=1)


def comparison(baseline: Path, *runs: Path, names: Sequence[str] = JUDGED, **options: Any) -> Comparison:
    """Return runs compared in these metrics."""
    sides: Sequence[RunResults] = [side(folder, *names) for folder in (baseline, *runs)]
    return compare_runs(sides, names, **options)


def verdicts(found: Comparison, place: int = 0) -> dict[str, str]:
    """Return metric -> verdict of one run against the baseline."""
    return {change.metric: change.verdict for change in found.pairs[place].changes}
