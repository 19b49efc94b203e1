"""The metric `fsdp_overhead`: share of step time in FSDP's own work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_attribution, need_sharding
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

_PARTS = ("all_gather", "reduce_scatter", "copy_in", "copy_out", "reshard", "other")


@metric(unit="%", better="lower", revision=4)
def fsdp_overhead(fsdp: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> Measurement:
    """Share of the time of steps that goes to FSDP's own work while the model computes nothing.

    FSDP's own work is all that its ranges launch (`FSDP::*`, `FullyShardedDataParallel._*`, those of
    DeepSpeed's ZeRO): all-gathers of parameters, reductions of gradients, copies into and out of their
    buffers, resharding, and `other`, such as moving offloaded weights or casting inputs.
    `FullyShardedDataParallel.forward` is not such a range, because the model runs in it.

    Formula:
        fsdp_overhead = 100 * |U(work of FSDP) - U(compute of the model)| / time of steps, mean over ranks

    Caveats:
        Waiting for a late peer in an all-gather counts. Hidden work still slows down concurrent kernels;
        the details list the time of each part, hidden or not. The all-reduce of hybrid sharding counts as
        reduction. The older FullyShardedDataParallel does not mark its copies. If no work can be traced
        back to the FSDP ranges of a rank, it may still have overhead, so the metric has no value.

    Reference:
        Ranges of torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
    """
    need_sharding(fsdp, steps, facts)
    need_attribution(fsdp)
    shares = shares_by_rank(fsdp, "exposed_ns", "window_ns")
    columns = [f"{part}_ns" for part in ("exposed", "work", "host", "communication", *_PARTS)]
    exposed, work, host, communication, *lengths = seconds_of(fsdp, steps, columns)
    return Measurement(
        mean_of(shares, "pct"),
        details={
            "per_rank_pct": by_rank(shares, "pct"),
            "per_step_pct": shares_by_step(fsdp, "exposed_ns", "window_ns"),
            "exposed_s": exposed,
            "work_s": work,
            "communication_s": communication,
            "work_pct_of_step": mean_of(shares_by_rank(fsdp, "work_ns", "window_ns"), "pct"),
            **{f"{part}_s": length for part, length in zip(_PARTS, lengths, strict=True)},
            "host_s": host,
            "all_gathers_per_step": fsdp["all_gathers"].sum() / steps.height,
            "reductions_per_step": fsdp["reduce_scatters"].sum() / steps.height,
        },
        window=window_of(steps),
        ranks=ranks_in(shares),
    )
