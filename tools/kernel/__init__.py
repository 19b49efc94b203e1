"""Which kernels the time of the device goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("total_kernel_time", "dominant_kernel_concentration", "memory_transfer_overhead")
TABLES = ("kernel_time", "steps")

LISTED = 20
"""Kernels that are listed by name, those with the most time first."""

_TIMES = {
    "per_type_s": "per_type_s",
    "per_type_pct": "per_type_pct",
    "kernels_per_step": "kernels_count",
    "per_rank_s": "per_rank_kernel_s",
}
_DOMINANT = {
    "per_rank_pct": "per_rank_dominant_kernel_pct",
    "per_rank_name": "per_rank_dominant_kernel_name",
    "compute_only_pct": "dominant_compute_kernel_pct",
}
_COPIES = {"copy_s": "copy_s", "exposed_s": "copy_exposed_s"}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the kernel time of one GPU in one step by type and by name, and the share of the first kernel.

    Times are sums of durations: kernels that run at the same time count each for itself. Copies by the
    copy engines are no kernels and stand apart.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode, tables=TABLES))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    total, dominant, copies = answers.of(*METRICS)
    return {
        **answer("kernel_s", total),
        **renamed(total.details, _TIMES),
        **(_by_name(answers) if total.value is not None else {}),
        **answer("dominant_kernel_pct", dominant),
        **renamed(dominant.details, _DOMINANT),
        **answer("copy_overhead_pct", copies),
        **renamed(copies.details, _COPIES),
        **origin(answers.of(*METRICS)),
    }


def _by_name(answers: Answers) -> dict[str, Any]:
    """Return the seconds a step and the number in all of the kernels with the most time."""
    from ccl_bench.metrics.shared.per_step import seconds

    times, steps = answers.tables["kernel_time"], answers.tables["steps"]
    sums = (
        times.select("name", "duration_ns")
        .group_by("name")
        .sum()
        .sort("duration_ns", "name", descending=[True, False])
    )
    first = sums["name"].head(LISTED)
    parts = {name: times.filter(times["name"] == name) for name in first}
    return {
        "per_name_s": {name: seconds(rows, steps, "duration_ns") for name, rows in parts.items()},
        "per_name_count": {name: rows["count"].sum() / steps.height for name, rows in parts.items()},
    }
