"""The metric `iteration_wall_clock_time`: time of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.statistics import spread
from ccl_bench.analysis.steps.steps import host_range_ns, mean_step_ns, slowest
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.per_step import RECORD, by_rank, need_rows, ranks_in, step_labels, window_of

if TYPE_CHECKING:
    from ccl_bench.result.details import StepTimeDetails


@metric(unit="s", better="lower", aliases=("iter_time_16", "avg_step_time", "iter_time"), revision=3)
def iteration_wall_clock_time(step_times: pl.DataFrame) -> Measurement:
    """Mean wall-clock time of a step, on the slowest rank of each.

    It is read from `step_times_per_rank.json`, else `step_times.json` or `step_durations.json`, else from
    the traces. Side files come first because no profiler slows them down.

    Formula:
        iteration_wall_clock_time = mean over steps of max over ranks of step length

    Caveats:
        Step times from a trace include the profiler's overhead. With a device a step lasts from the
        completion of the one before to its own: its device window, or the range on the host where that is
        longer. The details give the range on the host, which is too short where the host runs ahead. Where
        the trace holds no steps, the whole trace counts as one, and `window` says so.

    Reference:
        torch.profiler schedule and `ProfilerStep#`; coefficient of variation as std / mean.
    """
    need_rows(step_times, "steps", RECORD)
    steps = slowest(step_times)
    seconds = [duration / SECOND_NS for duration in steps["duration_ns"]]
    per_rank = step_times.group_by("rank").agg((pl.col("duration_ns").mean() / SECOND_NS).alias("mean_s"))
    details: StepTimeDetails = {
        "per_step_s": dict(zip(step_labels(steps), seconds, strict=True)),
        "per_rank_s": by_rank(per_rank, "mean_s"),
        "slowest_rank": steps["slowest_rank"].to_list(),
        "spread_s": spread(seconds),
    }
    if (host_ns := host_range_ns(step_times)) is not None:
        details["host_range_s"] = host_ns / SECOND_NS
    return Measurement(
        mean_step_ns(step_times) / SECOND_NS,
        details,
        window=window_of(step_times),
        ranks=ranks_in(step_times),
    )
