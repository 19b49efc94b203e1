"""The metric `sm`: share of the multiprocessors that had work."""

from __future__ import annotations

from dataclasses import replace

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    by_step,
    each_rank,
    need_rows,
    ranks_in,
    share_by_device,
    shares_by_step,
    window_of,
)

_SUMS = ("window_ns", "occupied_ns", "compute_occupied_ns", "communication_occupied_ns", "kernel_ns")


@metric(unit="%", better="higher", prefers=("counters",), revision=3)
def sm(
    sm_use: pl.DataFrame, sm_samples: pl.DataFrame, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Share of the streaming multiprocessors that had work, over the time of steps.

    *Measured* where the hardware's "SM Active" was sampled (Nsight Systems, GPU metrics), else *estimated*:
    a kernel with fewer blocks than there are multiprocessors leaves some of them idle, so each kernel
    counts with the share that its blocks can occupy. Concurrent kernels add up, to at most 100 % at any
    instant. `kind` in the details states which.

    Formula:
        measured:  sm = mean of the samples of SM Active in steps
        estimated: sm = 100 * integral over steps of min(sum over running kernels of
                        min(blocks per SM, 1), 1) dt / time of steps

        mean over ranks.

    Caveats:
        The estimate comes from launch shapes: a resident block need not make progress, and a
        communication kernel that waits counts as occupied, so compute and communication
        are listed apart. Achieved occupancy is the static upper bound that Kineto computes. Measured and
        estimated values are not comparable.

    Reference:
        "Est. SM Efficiency" of PyTorch's torch-tb-profiler; libkineto DeviceProperties.cpp; "SM Active"
        of Nsight Systems' GPU metrics.
    """
    need_rows(steps, "steps", RECORD)
    if sm_samples["samples"].sum():
        return _measured(sm_samples, window_of(steps))
    estimate = _estimated(sm_use, window_of(steps))
    per_device = share_by_device(sm_use, device_used, "occupied_ns", "window_ns")
    return replace(estimate, details={**estimate.details, **per_device})


def _measured(sm_samples: pl.DataFrame, window: str) -> Measurement:
    """Return the mean of the samples over steps, weighted by their length."""
    sampled = sm_samples.drop_nulls("sm_active_pct")
    weighted = (pl.col("sm_active_pct") * pl.col("window_ns")).sum() / pl.col("window_ns").sum()
    per_rank = (
        sampled.group_by("rank").agg(weighted.alias("sm_active_pct"), pl.col("samples").sum()).sort("rank")
    )
    return Measurement(
        float(per_rank.select(pl.col("sm_active_pct").mean()).item()),
        details={
            "kind": "measured",
            "per_rank_pct": by_rank(per_rank, "sm_active_pct"),
            "per_step_pct": by_step(sampled, "sm_active_pct"),
            "samples_count": int(per_rank["samples"].sum()),
        },
        window=window,
        ranks=ranks_in(per_rank),
    )


def _estimated(sm_use: pl.DataFrame, window: str) -> Measurement:
    """Return the share of the multiprocessors that the launch shapes could occupy."""
    weight = pl.col("occupancy_weight_ns")
    occupancy = ((pl.col("occupancy_pct") * weight).sum() / weight.sum()).fill_nan(None)
    per_rank = (
        sm_use.group_by(each_rank(), maintain_order=True)
        .agg(
            *(pl.col(name).sum() for name in _SUMS),
            occupancy.alias("occupancy_pct"),
            pl.col("rated_kernels", "kernels").sum(),
        )
        .filter(pl.col("rated_kernels") > 0)
        .with_columns((100 * pl.col("rated_kernels") / pl.col("kernels")).alias("rated_pct"))
        .sort("rank", maintain_order=True)
    )
    if per_rank.is_empty():
        raise NotMeasurable(
            "no kernel has a recorded launch shape (blocks per SM)",
            fix="record CUDA activity with torch.profiler; a run on CPUs has no multiprocessors",
        )
    shares = per_rank.select(
        "rank",
        "occupancy_pct",
        "rated_pct",
        **{f"{name.removesuffix('_ns')}_pct": 100 * pl.col(name) / pl.col("window_ns") for name in _SUMS[1:]},
    )
    means = {
        "compute_pct": shares["compute_occupied_pct"].mean(),
        "communication_pct": shares["communication_occupied_pct"].mean(),
        "gpu_busy_with_kernels_pct": shares["kernel_pct"].mean(),
        "estimated_achieved_occupancy_pct": shares["occupancy_pct"].mean(),
        "kernels_with_launch_shape_pct": shares["rated_pct"].mean(),
    }
    known_means = {name: mean for name, mean in means.items() if mean is not None}
    return Measurement(
        float(shares.select(pl.col("occupied_pct").mean()).item()),
        details={
            "kind": "estimated",
            "per_rank_pct": by_rank(shares, "occupied_pct"),
            "per_step_pct": shares_by_step(sm_use, "occupied_ns", "window_ns"),
            **known_means,
        },
        window=window,
        ranks=ranks_in(per_rank),
    )
