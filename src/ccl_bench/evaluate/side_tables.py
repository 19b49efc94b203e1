"""Side files as the tables that the same facts would have in a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.steps.choice import select_step_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.result.step_choice import StepChoice
    from ccl_bench.run.stated import Stated

SECOND_NS = 1_000_000_000


def step_times_in(stated: Stated) -> pl.DataFrame | None:
    """Return `step_times` from the side file that tells most, or None where the run has none."""
    if stated.rank_step_times and stated.rank_step_times.seconds:
        rows = [
            (rank, step, seconds)
            for rank, steps in stated.rank_step_times.seconds.items()
            for step, seconds in steps.items()
        ]
        return _table(rows, "step_times_per_rank.json")
    if stated.step_times and stated.step_times.seconds:
        source = stated.origins["step_times"].name
        return _table([(None, step, seconds) for step, seconds in stated.step_times.seconds.items()], source)
    return None


def chosen_step_times(stated: Stated, choice: StepChoice) -> pl.DataFrame | None:
    """Return `step_times` of the chosen steps from a side file; None where it has none of them.

    Ranges that a marker names are in the traces alone: a side file says nothing of them.
    """
    recorded = None if choice.marker else step_times_in(stated)
    if recorded is None or not choice:
        return recorded
    chosen = select_step_times(recorded, choice)
    return None if chosen.is_empty() else chosen


def _table(rows: Sequence[tuple[int | None, int, float]], source: str) -> pl.DataFrame:
    ranks, steps, seconds = zip(*rows, strict=True)
    return DERIVED.get("step_times").table.frame(
        {
            "rank": list(ranks),
            "step": list(steps),
            "duration_ns": [round(value * SECOND_NS) for value in seconds],
            "source": [source] * len(rows),
        }
    )
