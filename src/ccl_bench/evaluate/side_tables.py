"""Side files as the tables that the same facts would have in a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.frames import pl
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
