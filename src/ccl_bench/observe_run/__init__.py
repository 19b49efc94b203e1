"""Look at a run once and return everything that a report shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.inspect_run import looked_at
from ccl_bench.observe_run.bandwidth import bus_bandwidth
from ccl_bench.observe_run.memory import memory_curves
from ccl_bench.observe_run.times import step_times, time_parts, waits
from ccl_bench.result.observation import Observation, Series

if TYPE_CHECKING:
    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.evidence import Evidence
    from ccl_bench.run import Run

TABLES = ("step_times", "breakdown", "waits", "transfers", "memory_outline")


def observed(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Observation:
    """Return what is in `run`, the result of every metric, and series to draw: every trace is read once."""
    found, results, evidence = looked_at(run, TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    return Observation(found, results, _series(evidence))


def _series(evidence: Evidence) -> Series:
    """Return the series of tables that could be computed."""
    tables = {name: evidence.inputs[name] for name in TABLES if name in evidence.inputs}
    parts, ranks_each = time_parts(tables["breakdown"]) if "breakdown" in tables else ([], 1)
    curves, devices = memory_curves(tables["memory_outline"]) if "memory_outline" in tables else ([], 0)
    return Series(
        step_times(tables["step_times"]) if "step_times" in tables else None,
        parts,
        ranks_each,
        waits(tables["waits"]) if "waits" in tables else None,
        bus_bandwidth(tables["transfers"]) if "transfers" in tables else [],
        curves,
        devices,
    )
