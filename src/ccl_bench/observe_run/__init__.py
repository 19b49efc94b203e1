"""Look at a run once and return everything that a report shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.inspect_run import looked_at
from ccl_bench.metrics.bandwidth_utilization import KINDS
from ccl_bench.observe_run.bandwidth import bus_bandwidth
from ccl_bench.observe_run.memory import memory_curves
from ccl_bench.observe_run.times import step_times, time_parts, waits
from ccl_bench.result.observation import Observation, Series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.evidence import Evidence
    from ccl_bench.result import Result
    from ccl_bench.run import Run

DRAWN_WITH = {
    "step_times": "iteration_wall_clock_time",
    "breakdown": "gpu_busy",
    "waits": "straggler_lag_16",
    "transfers": "total_communication_time",
    "memory_outline": "peak_memory_allocated",
}
"""Table that is drawn → the metric of the same numbers: where that is refused, nothing is drawn."""

TABLES = tuple(DRAWN_WITH)

_OF_OTHER_RECORDER = "nsys-used"


def observed(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Observation:
    """Return what is in `run`, the result of every metric, and series to draw: every trace is read once."""
    found, results, evidence = looked_at(run, TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    return Observation(found, results, _series(evidence, _told(results)))


def _told(results: Iterable[Result]) -> frozenset[str]:
    """Return the metrics that have a value, and have it from the traces that are drawn."""
    return frozenset(
        result.metric
        for result in results
        if result.value is not None and all(finding.code != _OF_OTHER_RECORDER for finding in result.findings)
    )


def _series(evidence: Evidence, told: frozenset[str]) -> Series:
    """Return the series of tables that could be computed and whose metric has a value."""
    tables = {
        name: evidence.inputs[name]
        for name, metric in DRAWN_WITH.items()
        if metric in told and name in evidence.inputs
    }
    parts, ranks_each = time_parts(tables["breakdown"]) if "breakdown" in tables else ([], 1)
    curves, devices = memory_curves(tables["memory_outline"]) if "memory_outline" in tables else ([], 0)
    return Series(
        step_times(tables["step_times"]) if "step_times" in tables else None,
        parts,
        ranks_each,
        waits(tables["waits"]) if "waits" in tables else None,
        bus_bandwidth(_with_bandwidth(tables["transfers"], told)) if "transfers" in tables else [],
        curves,
        devices,
    )


def _with_bandwidth(transfers: pl.DataFrame, told: frozenset[str]) -> pl.DataFrame:
    """Return the calls without those of collectives whose bandwidth is refused."""
    refused = [
        name for kind, names in KINDS.items() if f"bandwidth_utilization_{kind}" not in told for name in names
    ]
    return transfers.filter(~pl.col("collective").is_in(refused))
