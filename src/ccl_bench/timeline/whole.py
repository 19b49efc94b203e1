"""What concerns all ranks together, as slices of a process of its own: steps, and who was late in each."""

from __future__ import annotations

from ccl_bench.analysis.communication.waits import by_rank_and_step
from ccl_bench.base.lazy_polars import pl
from ccl_bench.timeline.tracks import LATE, STEP, slices

NOISE_FLOOR = 0.01
"""Share of the step below which nobody is called late, as in the metric `straggler`."""


def whole(steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the steps from the first rank's start to the last rank's end, with the costliest late rank.

    `steps` are on the common clock.
    """
    spans = steps.group_by("iteration", "step").agg(pl.col("start_ns").min(), pl.col("device_end_ns").max())
    spans = spans.rename({"device_end_ns": "end_ns"}).sort("start_ns")
    found = [slices(spans, STEP, name=pl.format("step {}", pl.col("step")))]
    costs = by_rank_and_step(waits).filter(pl.col("caused_ns") > 0)
    worst = costs.sort("caused_ns", descending=True).unique(["iteration", "step"], keep="first")
    late = spans.join(worst, on=["iteration", "step"], nulls_equal=True, maintain_order="left").filter(
        pl.col("caused_ns") >= NOISE_FLOOR * (pl.col("end_ns") - pl.col("start_ns"))
    )
    who = pl.format("rank {}", pl.col("rank").cast(pl.String).fill_null("unknown"))
    cost = pl.format('"caused_wait_ns":{}', pl.col("caused_ns"))
    return pl.concat([*found, slices(late, LATE, name=who, args=cost)])
