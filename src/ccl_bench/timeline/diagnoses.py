"""The diagnoses of a run as slices: the steps in which each was detected, and the operations that show it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.timeline.slices import DIAGNOSIS, slices
from ccl_bench.whatif.run_graph import counted_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.result.diagnosis import Opportunity

_COLUMNS = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String, "args": pl.String}

EXAMPLE = f"{DIAGNOSIS} example"
"""Category of an operation that shows a diagnosis; that of a step with the diagnosis is the track's."""


def detected_slices(diagnoses: Sequence[Opportunity], steps: pl.DataFrame) -> pl.DataFrame:
    """Return a slice for each step in which each diagnosis was detected; it is as long as the step.

    `steps` have `iteration`, `step`, `start_ns` and `device_end_ns`. The slices of one step are nested, the
    diagnosis with the largest gain outermost.
    """
    spans = counted_on(steps).group_by("step").agg(pl.col("start_ns").min(), pl.col("device_end_ns").max())
    by_step = {step: (start, end) for step, start, end in spans.iter_rows()}
    rows = [
        (
            step,
            *by_step[step],
            each.title,
            _members(diagnosis=each.name, gain_ns_per_step=_gain_ns(each), fix=each.remedy),
        )
        for each in diagnoses
        for step in each.steps
        if step in by_step
    ]
    return slices(pl.DataFrame(rows, schema=_COLUMNS, orient="row"), DIAGNOSIS)


def example_slices(
    diagnoses: Sequence[Opportunity], contents: pl.DataFrame, clock_offsets: pl.DataFrame
) -> pl.DataFrame:
    """Return a slice for each operation that shows a diagnosis, with its `trace`, on its own clock.

    The times of examples are those of the graph, from which the offset of the rank's clock is subtracted.
    """
    offsets = clock_offsets.select("iteration", "rank", "offset_ns").unique(["iteration", "rank"])
    placed = contents.join(offsets, on=["iteration", "rank"], how="left", nulls_equal=True)
    placed = placed.with_columns(pl.col("offset_ns").fill_null(0)).sort("start_ns")
    by_rank: dict[int | None, list[tuple[int, int, int]]] = {}
    for trace, rank, start, offset in placed.select("trace", "rank", "start_ns", "offset_ns").iter_rows():
        by_rank.setdefault(rank, []).append((trace, start - offset, offset))
    rows = []
    for each in diagnoses:
        for one in each.evidence:
            # The recording window of the operation is the last one that began before it ended.
            traces = [
                (trace, offset) for trace, start, offset in by_rank.get(one.rank, ()) if start <= one.end_ns
            ]
            if traces:
                trace, offset = traces[-1]
                members = _members(diagnosis=each.name, title=each.title, fix=each.remedy)
                span = one.start_ns + offset, one.end_ns + offset
                rows.append((one.step, *span, f"{each.name}: {one.operation}", members, trace))
    table = pl.DataFrame(rows, schema={**_COLUMNS, "trace": pl.Int64}, orient="row")
    drawn = slices(table, DIAGNOSIS, category=pl.lit(EXAMPLE))
    return drawn.with_columns(table["trace"])


def _gain_ns(diagnosis: Opportunity) -> int | None:
    return None if diagnosis.gain_s is None else round(diagnosis.gain_s * 1e9)


def _members(**members: str | int | None) -> str:
    """Return the members of a JSON object without its braces; those without a value are left out."""
    return json.dumps({key: value for key, value in members.items() if value is not None})[1:-1]
