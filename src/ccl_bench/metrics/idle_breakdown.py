"""The metric `idle_breakdown`: idle time of the device by cause."""

from __future__ import annotations

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_launches
from ccl_bench.metrics.shared.per_step import (
    by_rank,
    label,
    mean_of,
    ranks_in,
    seconds_of,
    shares_by_rank,
    shares_by_step,
    window_of,
)

CAUSES = {"host": "host_wait_ns", "kernel": "kernel_wait_ns", "other": "other_ns"}


@metric(unit="%", better="lower", revision=3)
def idle_breakdown(
    idle: pl.DataFrame, stream_idle: pl.DataFrame, launching: pl.DataFrame, steps: pl.DataFrame
) -> Measurement:
    """Share of the device's idle time in which it waited for the host to launch something.

    A gap is time in which the device has no work at all. If the work that ends the gap was launched after
    the gap began, the device waited for the host. If it was launched before, a gap shorter than 30 us is
    the delay between kernels, and a longer one waits for something else, such as an event of another
    stream.

    Formula:
        idle_breakdown = 100 * time waiting for the host / idle time, over steps, mean over ranks

    Caveats:
        The whole gap counts, although part of it is the delay of launching. A gap that no work ends counts
        as waiting for the host. HTA looks at each stream separately, so a stream may be idle while others
        work; the details have that breakdown as `streams_s`. Kernels of CUDA graphs share one launch, and
        kernels that a profiler does not see inside graphs look like gaps.

    Reference:
        HolisticTraceAnalysis 0.5.0 `get_idle_time_breakdown`; its `consecutive_kernel_delay` of 30 is
        called nanoseconds in its manual and compared with microseconds in its code.
    """
    need_launches(launching, steps)
    shares = shares_by_rank(idle, "host_wait_ns", "idle_ns")
    if shares.is_empty():
        raise NotMeasurable("the device was never idle in a step, so there is nothing to divide")
    lengths = {"idle_s": "idle_ns"} | {f"{name}_wait_s": column for name, column in CAUSES.items()}
    return Measurement(
        mean_of(shares, "pct"),
        details={
            "per_rank_pct": by_rank(shares, "pct"),
            "per_step_pct": shares_by_step(idle, "host_wait_ns", "idle_ns"),
            "per_cause_pct": {
                name: mean_of(shares_by_rank(idle, column, "idle_ns"), "pct")
                for name, column in CAUSES.items()
            },
            **dict(zip(lengths, seconds_of(idle, steps, [*lengths.values()]), strict=True)),
            "idle_pct_of_step": mean_of(shares_by_rank(idle, "idle_ns", "window_ns"), "pct"),
            "streams_s": _streams(stream_idle, steps),
            "cuda_graph_launches": int(launching["graph_launches"].sum()),
        },
        window=window_of(steps),
        ranks=ranks_in(shares),
    )


def _streams(stream_idle: pl.DataFrame, steps: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return the gaps of each stream a step, mean over ranks, by cause."""
    counts = steps.group_by("rank").agg(pl.len().alias("steps"))
    gaps = stream_idle.drop_nulls("stream")
    sums = gaps.group_by("stream", "rank").agg(pl.col(*CAUSES.values()).sum())
    # A rank without gaps of a stream counts as 0 in the stream's mean over ranks.
    every_rank = (
        gaps.select(pl.col("stream").unique())
        .join(counts, how="cross")
        .join(sums, on=["stream", "rank"], how="left", nulls_equal=True)
        .sort("stream", "rank")
    )
    mean = (pl.col(*CAUSES.values()).fill_null(0) / pl.col("steps") / SECOND_NS).mean()
    by_stream = every_rank.partition_by("stream", as_dict=True, maintain_order=True)
    return {
        label(stream): dict(zip(CAUSES, rows.select(mean).row(0), strict=True))
        for (stream,), rows in by_stream.items()
    }
