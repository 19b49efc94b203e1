"""What a choice of steps means in one trace: which steps are left, and what there was to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.steps.choice import overlapping_ranges, range_names, select_steps
from ccl_bench.base.findings import Finding
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.result.step_choice import StepChoice
    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.format import TraceFile

RECORDED = "recorded_steps"
"""Name under which the steps of a trace are kept as they were before some were chosen."""

_MOST_NAMES = 1_000
"""Names of ranges that are kept of a trace to say which there are."""


def marker_table(choice: StepChoice) -> pl.DataFrame:
    """Return the table that says which ranges are the steps."""
    return TABLES["marker"].frame({"pattern": [choice.marker] if choice.marker else []})


def chosen(steps: pl.DataFrame, choice: StepChoice) -> dict[str, pl.DataFrame]:
    """Return the steps that count, and all where that is not the same.

    A step that is not chosen is none: whatever comes from the steps is of the chosen ones alone.
    """
    return {"steps": select_steps(steps, choice), RECORDED: steps} if choice else {"steps": steps}


def names_to_choose(content: TraceContent) -> tuple[str, ...]:
    """Return the names of ranges, the most frequent first."""
    return tuple(range_names(content.table("annotations"))[:_MOST_NAMES])


def overlaps(choice: StepChoice, content: TraceContent, trace: TraceFile) -> list[Finding]:
    """Return a finding where ranges that the marker names begin in one step and end after it."""
    count = overlapping_ranges(content.table("annotations"), choice.marker) if choice.marker else 0
    if not count:
        return []
    message = f"ranges that {choice.marker!r} names overlap with earlier ones, which alone are steps"
    return [Finding("marker-overlaps", "warning", message, trace.relative, trace.rank, count, ("steps",))]
