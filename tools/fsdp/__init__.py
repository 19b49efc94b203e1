"""What fully sharded data parallelism costs: gathering, reducing, copying, resharding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("fsdp_overhead", "fsdp_prefetch_efficiency")

_PARTS = {
    "communication_s": "communication_s",
    "all_gather_s": "all_gather_s",
    "reduce_scatter_s": "reduce_scatter_s",
    "copy_in_s": "copy_in_s",
    "copy_out_s": "copy_out_s",
    "reshard_s": "reshard_s",
    "other_s": "other_s",
    "work_s": "work_s",
    "work_pct_of_step": "work_pct",
    "exposed_s": "exposed_s",
    "host_s": "host_s",
    "all_gathers_per_step": "all_gathers_count",
    "reductions_per_step": "reductions_count",
    "per_rank_pct": "per_rank_overhead_pct",
}
_HIDDEN = {
    "hidden_s": "all_gather_hidden_s",
    "reduction_hidden_pct": "reduction_hidden_pct",
    "per_rank_pct": "per_rank_prefetch_efficiency_pct",
}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the time of each part of sharding in a step, its overhead, and how well gathers are hidden.

    `communication_s` is the time with an all-gather of parameters or a reduction of gradients: the union of
    both, so that it is less than the sum of `all_gather_s` and `reduce_scatter_s` where they run at once.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    overhead, prefetch = answers.of(*METRICS)
    return {
        **answer("overhead_pct", overhead),
        **renamed(overhead.details, _PARTS),
        **answer("prefetch_efficiency_pct", prefetch),
        **renamed(prefetch.details, _HIDDEN),
        **origin(answers.of(*METRICS)),
    }
