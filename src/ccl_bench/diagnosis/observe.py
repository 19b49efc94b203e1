"""Observe a run with its verdict: what reports and inspections show first; every trace is read once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.diagnosis.diagnose import diagnose_loaded, needed_tables, verdict_of
from ccl_bench.diagnosis.verdict import TABLES
from ccl_bench.evaluate.inspect import inspect_with_tables
from ccl_bench.evaluate.report_data import REPORT_TABLES, report_data_of
from ccl_bench.result.diagnosis import Diagnosed
from ccl_bench.whatif import run_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.engine import Progress
    from ccl_bench.result.inspection import Inspection
    from ccl_bench.result.report_data import ReportData
    from ccl_bench.run import Run

LARGE = 1_000_000_000
"""Bytes of trace files above which a report does not replay the run, and a tenth of which an inspection."""


def observe_run(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> ReportData:
    """Return what a report of a run shows, with its diagnoses."""
    is_large = _size(run) > LARGE
    tables = () if is_large else needed_tables()
    found, results, evidence = inspect_with_tables(
        run, (*REPORT_TABLES, *tables), jobs=jobs, use_cache=use_cache, progress=progress
    )
    observed = report_data_of(found, results, evidence)
    if is_large:
        return replace(observed, diagnosed=_left_out(run))
    diagnosed = _or_reason(run, lambda: diagnose_loaded(run, evidence))
    return replace(
        observed,
        inspection=replace(found, verdict=diagnosed.verdict),
        diagnosed=replace(diagnosed, findings=[]),
    )


def inspect_run(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Inspection:
    """Return what is in a run, with its verdict."""
    tables = () if _size(run) > LARGE // 10 else (*run_graph.TABLES, *TABLES)
    found, _, evidence = inspect_with_tables(run, tables, jobs=jobs, use_cache=use_cache, progress=progress)
    if not tables:
        return found
    diagnosed = _or_reason(run, lambda: verdict_of(run, evidence))
    return replace(found, verdict=diagnosed.verdict)


def _size(run: Run) -> int:
    return sum(trace.size for trace in run.traces)


def _left_out(run: Run) -> Diagnosed:
    reason = "the traces are large; ccl-bench diagnose shows where a step goes"
    return Diagnosed(str(run.path), None, why_no_verdict=reason, why_no_gains=reason)


def _or_reason(run: Run, answer: Callable[[], Diagnosed]) -> Diagnosed:
    """Return an answer; a mistake in it becomes the reason why there is none, and costs nothing else."""
    try:
        return answer()
    except Exception as error:  # a report is worth more than its first block
        reason = f"finding one failed: {type(error).__name__}: {error}"
        return Diagnosed(str(run.path), None, why_no_verdict=reason, why_no_gains=reason)
