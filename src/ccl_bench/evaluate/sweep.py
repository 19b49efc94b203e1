"""The serving sweep of a run: its results of a serving benchmark as one curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.serving.sweep import TABLES, sweep_of
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.evaluate.load import load_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.engine import Progress
    from ccl_bench.result.sweep import Sweep
    from ccl_bench.run import Run


def sweep_of_inputs(inputs: Mapping[str, Any]) -> Sweep | None:
    """Return the sweep in loaded tables, None with at most one result; NotMeasurable like `sweep_of_run`."""
    if not all(name in inputs for name in TABLES):
        return None
    requests, statistics, settings = (inputs[name] for name in TABLES)
    return sweep_of(requests, statistics, settings, inputs["facts"])


def sweep_or_reason(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> tuple[Sweep | None, str]:
    """Return the sweep of a run, or why its results form none; neither with at most one result."""
    if not any(TABLES[-1] in trace.form.tables for trace in run.traces):
        return None, ""
    loaded = load_tables(run, TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    return reason_if_none(loaded.inputs)


def reason_if_none(inputs: Mapping[str, Any]) -> tuple[Sweep | None, str]:
    """Return the same of loaded tables."""
    try:
        return sweep_of_inputs(inputs), ""
    except NotMeasurable as error:
        return None, str(error.args[0])


def sweep_of_run(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Sweep:
    """Return the sweep of a run.

    Raises NotMeasurable if it has fewer than two results, or results of different configurations or lengths,
    or of an unknown load.
    """
    loaded = load_tables(run, TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    sweep = sweep_of_inputs(loaded.inputs)
    if sweep is None:
        raise NotMeasurable(
            "the run holds fewer than two results of serving benchmarks, so there is no sweep",
            fix="put the results of several loads of one configuration into the run directory",
        )
    return sweep
