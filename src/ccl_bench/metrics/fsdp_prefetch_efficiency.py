"""The metric `fsdp_prefetch_efficiency`: share of FSDP's all-gathers that compute hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_sharding
from ccl_bench.metrics.shared.per_step import (
    by_rank,
    mean_of,
    ranks_in,
    seconds_of,
    shares_by_rank,
    shares_by_step,
    window_of,
)

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl


@metric(unit="%", better="higher", revision=2)
def fsdp_prefetch_efficiency(fsdp: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> Measurement:
    """Share of the time of FSDP's all-gathers that is hidden under compute of the model.

    Formula:
        fsdp_prefetch_efficiency = 100 * |U(all-gathers of FSDP) intersected with U(compute)|
                                   / |U(all-gathers of FSDP)|

        over the steps of each rank, mean over ranks. FSDP's own copies do not count as compute here.

    Caveats:
        All-gathers of tensor parallelism are excluded. An all-gather that waits for a late peer under
        compute counts as hidden. The first gather of a pass has nothing to overlap with, so a model with
        few layers scores low.

    Reference:
        Prefetching in FSDP: arXiv 2304.11277, section 3.3; hidden time as in `comm_comp_overlap`.
    """
    need_sharding(fsdp, steps, facts)
    shares = shares_by_rank(fsdp, "all_gather_hidden_ns", "all_gather_ns")
    if shares.is_empty():
        raise NotMeasurable(
            "no all-gather can be traced back to FSDP in any step",
            fix="record CPU and CUDA activity with torch.profiler, launches included",
        )
    reductions = shares_by_rank(fsdp, "reduce_scatter_hidden_ns", "reduce_scatter_ns")
    all_gather, hidden = seconds_of(fsdp, steps, ("all_gather_ns", "all_gather_hidden_ns"))
    return Measurement(
        mean_of(shares, "pct"),
        details={
            "per_rank_pct": by_rank(shares, "pct"),
            "per_step_pct": shares_by_step(fsdp, "all_gather_hidden_ns", "all_gather_ns"),
            "all_gather_s": all_gather,
            "hidden_s": hidden,
            "reduction_hidden_pct": mean_of(reductions, "pct") if reductions.height else None,
        },
        window=window_of(steps),
        ranks=ranks_in(shares),
    )
