"""Numbers of runs that have Execution Traces alone: what was communicated, and nothing of when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.metrics.shared.rows import window_of
from ccl_bench.metrics.shared.step_time_lag import OTHER_SOURCE
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl

WINDOW = "calls of steps in Execution Traces"


def calls_in_steps(et_traffic: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of Execution Traces that belong to a step; NotMeasurable without any."""
    inside = et_traffic.drop_nulls("step")
    if inside.is_empty():
        raise NotMeasurable(
            "no Execution Trace holds a communication call in a step",
            fix="record with torch.profiler.ExecutionTraceObserver around whole steps of every rank",
        )
    return inside


def source_finding(et_steps: pl.DataFrame) -> Finding:
    """Return what to say of a number from Execution Traces."""
    is_whole = WHOLE_TRACE in window_of(et_steps)
    unmarked = "; nothing marks a step in them: the whole trace counts as one" if is_whole else ""
    message = f"from Execution Traces, whose operators show what was communicated and not when{unmarked}"
    return Finding(OTHER_SOURCE, "note", message)
