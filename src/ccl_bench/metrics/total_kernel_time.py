"""The metric `total_kernel_time`: sum of kernel durations in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.kernel_types import OTHER
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_kernels
from ccl_bench.metrics.shared.per_step import seconds_by, time_per_step

if TYPE_CHECKING:
    from ccl_bench.result.details import KernelTimeDetails

MUCH = 0.2
"""Share of kernel time of unknown type from which on the order of the types is doubtful: a finding."""


@metric(unit="s", better="lower", revision=3)
def total_kernel_time(kernel_time: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Time that one GPU's kernels take in one step, added up.

    Formula:
        total_kernel_time = sum of the durations of kernels inside the step, mean over steps and ranks

    Caveats:
        Kernels that no step launched, such as those queued before the recording, do not count.
        Concurrent kernels are each counted, so this can exceed the step; `gpu_busy` counts overlapping work
        once. Communication kernels that wait for a peer count in full. Copies and memory sets are not
        kernels. The types come from names, and a name may show nothing (`other`).

    Reference:
        HolisticTraceAnalysis `get_gpu_kernel_breakdown`, which counts the whole trace.
    """
    need_kernels(kernel_time, steps)
    by_type = seconds_by(kernel_time, steps, "type", "duration_ns")
    ordered = dict(sorted(by_type.items(), key=lambda item: -item[1]))
    total = sum(ordered.values())
    details: KernelTimeDetails = {
        "per_type_s": ordered,
        "per_type_pct": {kind: 100 * time / total for kind, time in ordered.items()},
        "kernels_per_step": float(kernel_time["count"].sum()) / steps.height,
    }
    if total and ordered.get(OTHER, 0.0) > MUCH * total:
        others = kernel_time.filter(pl.col("type") == OTHER).group_by("name").agg(pl.col("duration_ns").sum())
        largest = others.sort("duration_ns", "name", descending=[True, False])["name"][0]
        share_pct = details["per_type_pct"][OTHER]
        details["types_unknown"] = (
            f"{share_pct:.0f} % of kernel time is in kernels of unknown type, most of it in {largest}"
        )
    return time_per_step(kernel_time, steps, "duration_ns", details)
