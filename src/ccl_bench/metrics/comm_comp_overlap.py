"""The metric `comm_comp_overlap`: share of communication time that compute hides."""

from __future__ import annotations

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.checks import need_communication
from ccl_bench.metrics.shared.per_step import (
    by_rank,
    each_rank,
    listed_parts,
    mean_of,
    ranks_in,
    shares_by_step,
    window_of,
)
from ccl_bench.metrics.shared.waiting import hidden_parts


@metric(
    unit="%",
    better="higher",
    revision=3,
    applies=(checks.several_ranks,),
    aliases=("compute_comm_overlap",),
    variants={"comm_comp_overlap_16": ("ratio", 0.01)},
)
def comm_comp_overlap(
    breakdown: pl.DataFrame, steps: pl.DataFrame, communication_parts: pl.DataFrame | None = None
) -> Measurement:
    """Share of communication time that is hidden under compute.

    Formula:
        comm_comp_overlap = 100 * |U(communication) intersected with U(compute)| / |U(communication)|

        over the steps of each rank, mean over ranks that communicate; U is the union of intervals.
        In every step, compute + fused + exposed communication + exposed memory + idle = window.

    Caveats:
        Kernels that multiply matrices and communicate in one are `fused`: neither hidden nor exposed, and
        no part of |U(communication)|. Communication beside them alone is neither hidden nor exposed either.
        A communication kernel that waits for a late peer counts as communication, so a straggler elsewhere
        raises the overlap: `hidden_pct_of_part` has the hidden share of waiting and of transfer. Kernels that
        overlap share the device, so hidden time is not free. Exposed communication is not always waited for.

    Reference:
        HolisticTraceAnalysis `get_comm_comp_overlap`; it drops the last step and looks at the
        whole trace, this metric at every step. Exposed time as in TraceLens.
    """
    need_communication(breakdown, steps)
    totals = (
        breakdown.group_by(each_rank(), maintain_order=True)
        .agg(pl.col("^.*_ns$").sum(), pl.len().alias("steps"))
        .filter(pl.col("window_ns") > 0)
        .sort("rank", maintain_order=True)
    )
    communicating = totals.filter(pl.col("communication_ns") > 0)
    shares = communicating.select(
        "rank", (100 * pl.col("overlap_ns") / pl.col("communication_ns")).alias("overlap_pct")
    )
    means = (
        (pl.col(f"{part}_ns") / pl.col("steps") / SECOND_NS).mean().alias(part)
        for part in listed_parts(breakdown)
    )
    mean_step = totals.select(means).row(0, named=True)
    return Measurement(
        mean_of(shares, "overlap_pct"),
        details={
            "per_rank_pct": by_rank(shares, "overlap_pct"),
            "per_step_pct": shares_by_step(breakdown, "overlap_ns", "communication_ns"),
            "overlap_s_per_step": float(
                totals.select((pl.col("overlap_ns") / pl.col("steps")).mean() / SECOND_NS).item()
            ),
            "exposed_communication_s_per_step": mean_step["exposed_communication"],
            "exposed_communication_pct_of_step": float(
                totals.select((100 * pl.col("exposed_communication_ns") / pl.col("window_ns")).mean()).item()
            ),
            "mean_step_s": mean_step,
            **hidden_parts(breakdown, communication_parts, steps),
        },
        window=window_of(steps),
        ranks=ranks_in(communicating),
    )
