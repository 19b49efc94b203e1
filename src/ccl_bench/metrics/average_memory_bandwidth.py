"""The metric `average_memory_bandwidth`: rate of memory copies."""

from __future__ import annotations

from ccl_bench.analysis.device.time_by_kind import SET
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    each_rank,
    mean_of,
    need_rows,
    ranks_in,
    window_of,
)


@metric(unit="GB/s", better="higher", revision=3)
def average_memory_bandwidth(copies: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Rate at which the device's copy engines moved data: bytes over time, all copies of the steps together.

    Formula:
        average_memory_bandwidth = bytes of copies / sum of their durations, mean over ranks

    Caveats:
        The rate describes copies, not the memory: a trace does not show what kernels read and write. Small
        copies are bound by latency and lower it. A copy inside the device reads and writes each byte; each
        byte is counted once here. Rates of different kinds of copy differ by a factor of a hundred; see the
        details. Memory sets and copies of unknown size are excluded.

    Reference:
        HolisticTraceAnalysis `get_memory_bw_summary`, which averages rates, not bytes over time.
    """
    need_rows(steps, "steps", RECORD)
    moved = copies.filter(pl.col("kind") != SET)
    rates = _rates(moved, *each_rank())
    if rates.is_empty():
        raise NotMeasurable(
            "no step contains a copy of known size and duration",
            fix="record CUDA activity with torch.profiler; on CPUs there is nothing to copy to",
        )
    kinds = _rates(moved, "kind").sort("kind")
    return Measurement(
        mean_of(rates, "rate"),
        details={
            "per_rank_gb_per_s": by_rank(rates, "rate"),
            "per_kind_gb_per_s": dict(kinds.select("kind", "rate").iter_rows()),
            "per_kind_bytes_per_step": {
                kind: size / steps.height for kind, size in kinds.select("kind", "bytes").iter_rows()
            },
            "copies_of_unknown_size": int((moved["count"] - moved["sized"]).sum()),
        },
        window=window_of(steps),
        ranks=ranks_in(rates),
    )


def _rates(copies: pl.DataFrame, *by: str | pl.Expr) -> pl.DataFrame:
    """Return bytes and GB/s of the copies that share the values of `by`."""
    sums = copies.group_by(*by, maintain_order=True).agg(pl.col("bytes", "duration_ns").sum())
    return sums.filter(pl.col("duration_ns") > 0).with_columns(
        (pl.col("bytes") / pl.col("duration_ns")).alias("rate")  # bytes per ns are GB per s
    )
