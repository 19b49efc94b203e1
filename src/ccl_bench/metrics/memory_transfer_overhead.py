"""The metric `memory_transfer_overhead`: time in which only copies run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    mean_of,
    need_rows,
    ranks_in,
    seconds_by,
    seconds_of,
    shares_by_rank,
    shares_by_step,
    window_of,
)

if TYPE_CHECKING:
    from ccl_bench.base.lazy_imports import pl


@metric(unit="%", better="lower", revision=3)
def memory_transfer_overhead(
    copy_time: pl.DataFrame, copies: pl.DataFrame, steps: pl.DataFrame
) -> Measurement:
    """Share of the time of steps in which the device copied memory and ran no kernel.

    Formula:
        memory_transfer_overhead = 100 * |U(copies) - U(kernels)| / time of steps, mean over ranks

    Caveats:
        Copies by the copy engines only: kernels that copy are kernels. Memory sets move nothing and are
        left out. The time with any copy, hidden or not, is in the details, by kind.

    Reference:
        Exposed memory copies of AMD TraceLens; HolisticTraceAnalysis counts copies as kernels.
    """
    need_rows(steps, "steps", RECORD)
    if not copy_time["kernel_ns"].sum() and copies.is_empty():
        raise NotMeasurable(
            "the traces hold no work of a device in any step",
            fix="record CUDA activity with torch.profiler; a run on CPUs has no copies to a device",
        )
    shares = shares_by_rank(copy_time, "exposed_ns", "window_ns")
    exposed, copy = seconds_of(copy_time, steps, ("exposed_ns", "copy_ns"))
    return Measurement(
        mean_of(shares, "pct"),
        details={
            "per_rank_pct": by_rank(shares, "pct"),
            "per_step_pct": shares_by_step(copy_time, "exposed_ns", "window_ns"),
            "exposed_s": exposed,
            "copy_s": copy,
            "copy_pct_of_step": mean_of(shares_by_rank(copy_time, "copy_ns", "window_ns"), "pct"),
            "per_kind_s": seconds_by(copies, steps, "kind", "union_ns"),
        },
        window=window_of(steps),
        ranks=ranks_in(shares),
    )
