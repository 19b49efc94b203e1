"""The metric `dominant_kernel_concentration`: share of kernel time in the longest-running kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_kernels
from ccl_bench.metrics.shared.per_step import by_rank, each_rank, label, mean_of, ranks_in, window_of

if TYPE_CHECKING:
    from ccl_bench.result.details import KernelShare, KernelSharesDetails

_LISTED = 10


@metric(unit="%", better="neither", revision=3)
def dominant_kernel_concentration(kernel_time: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of kernel time that the longest-running kernel takes.

    Formula:
        dominant_kernel_concentration = 100 * max over names of kernel time / total kernel time

        over the steps of each rank, mean over ranks. Kernels are grouped by recorded name, template
        arguments included.

    Caveats:
        Communication kernels are included, and one that waits for a peer may rank first; the details name
        the top kernel of each rank and the top compute kernel. Two shapes of a matrix product may share a
        name or have different ones.

    Reference:
        HolisticTraceAnalysis `get_gpu_kernel_breakdown`, share of the first kernel.
    """
    need_kernels(kernel_time, steps)
    dominant = _dominant(kernel_time)
    computing = _dominant(kernel_time.filter(pl.col("type") != "communication"))
    times = kernel_time.group_by("type", "name").agg(pl.col("duration_ns", "count").sum())
    share = 100 * pl.col("duration_ns") / pl.col("duration_ns").sum()
    each = pl.col("duration_ns") / steps.height / SECOND_NS  # A step of one GPU.
    shares = times.select("name", "type", share.alias("pct"), "count", each.alias("s_per_step"))
    first = shares.sort("pct", "name", descending=[True, False]).head(_LISTED)
    details: KernelSharesDetails = {
        "per_rank_pct": by_rank(dominant, "pct"),
        "per_rank_name": {label(row["rank"]): row["name"] for row in dominant.iter_rows(named=True)},
        "compute_only_pct": mean_of(computing, "pct") if computing.height else None,
        "first": cast("list[KernelShare]", first.to_dicts()),
    }
    return Measurement(
        mean_of(dominant, "pct"),
        details,
        window=window_of(steps),
        ranks=ranks_in(dominant),
    )


def _dominant(kernel_time: pl.DataFrame) -> pl.DataFrame:
    """Return the kernel of each rank with the most time, and its percent of all kernel time."""
    rank, unknown = each_rank()
    times = kernel_time.group_by(rank, unknown, "name").agg(pl.col("duration_ns").sum())
    one = ["rank", unknown.meta.output_name()]
    ordered = times.sort(*one, "duration_ns", "name", descending=[False, False, True, False])
    whole = pl.col("duration_ns").sum().over(one)
    shares = ordered.with_columns((100 * pl.col("duration_ns") / whole).alias("pct"))
    return shares.filter(whole > 0).unique(one, keep="first", maintain_order=True)
