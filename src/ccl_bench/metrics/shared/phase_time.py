"""What the metrics about the phases of a training step have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.device.phases import ACCUMULATION, BACKWARD, PHASES, REDUCTION, UNKNOWN
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.rows import RECORD, need_rows
from ccl_bench.metrics.shared.per_step import mean_of, seconds, shares_by_rank, time_per_step

if TYPE_CHECKING:
    from ccl_bench.metrics import Measurement

RECORD_OPERATORS = "record CPU and CUDA activity with torch.profiler, from launches to operators"


def rows_of(phases: pl.DataFrame, phase: str) -> pl.DataFrame:
    """Return the rows of one phase, or raise NotMeasurable where it is not recognised."""
    need_rows(phases, "steps", RECORD)
    rows = phases.filter(pl.col("phase") == phase)
    if rows["count"].sum():
        return rows
    work = phases["count"].sum()
    if work and phases.filter(pl.col("phase") == UNKNOWN)["count"].sum() == work:
        raise NotMeasurable("no work can be traced back to where it was launched", fix=RECORD_OPERATORS)
    raise NotMeasurable(f"no {phase} work is recognised in any step", fix=RECORD_OPERATORS)


def phase_time(phases: pl.DataFrame, steps: pl.DataFrame, phase: str) -> Measurement:
    """Return the time of one phase in a step, with what else it ran and where the rest of the step went."""
    rows = rows_of(phases, phase)
    details: dict[str, Any] = {
        "pct_of_step": mean_of(shares_by_rank(rows, "time_ns", "window_ns"), "pct"),
        "summed_s": seconds(rows, steps, "duration_ns"),
        "communication_s": seconds(rows, steps, "communication_ns"),
        "with_communication_s": seconds(rows, steps, "busy_ns"),
    }
    if phase == BACKWARD:
        details["recomputed_s"] = seconds(rows, steps, "recomputed_ns")
        details["gradient_accumulation_s"] = _of(phases, steps, ACCUMULATION, "time_ns")
        details["gradient_communication_s"] = _of(phases, steps, REDUCTION, "busy_ns")
    details["per_phase_s"] = {name: _of(phases, steps, name, "time_ns") for name in PHASES}
    return time_per_step(rows, steps, "time_ns", details)


def _of(phases: pl.DataFrame, steps: pl.DataFrame, phase: str, column: str) -> float:
    return seconds(phases.filter(pl.col("phase") == phase), steps, column)
