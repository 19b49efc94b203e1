"""The metric `traffic_distribution_16`: bytes that one GPU communicates in a step."""

from __future__ import annotations

from dataclasses import replace

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import WINDOW, calls_in_steps, moving, source_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS, by_rank, ranks_in
from ccl_bench.metrics.traffic_distribution import attributed, bytes_by_rank


def volume_of_execution_traces(et_traffic: pl.DataFrame, et_steps: pl.DataFrame) -> Measurement:
    """Return the bytes that one GPU communicates in one step, from Execution Traces."""
    inside = attributed(calls_in_steps(et_traffic), et_steps)
    return replace(_volume(inside, et_steps), window=WINDOW, findings=[source_finding(et_steps, inside)])


@metric(
    unit="GB",
    better="neither",
    applies=(checks.several_ranks,),
    otherwise=(volume_of_execution_traces,),
    revision=3,
)
def traffic_distribution_16(traffic: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Bytes that one GPU communicates in one step, over all collectives.

    Formula:
        traffic_distribution_16 = sum of message bytes / (ranks * steps) / 10^9, of Execution Traces where
        there are no others

    Caveats:
        Messages as nccl-tests counts them: the buffer of an all-reduce, the gathered side of an all-gather,
        the scattered side of a reduce-scatter. A message between two ranks counts on both. A call in a
        group of one rank moves nothing; it counts as a call, but not in mean message sizes. Calls without a
        recorded size are listed separately; if they are most of the calls, or of their time, there is no
        value.

    Reference:
        nccl-tests doc/PERFORMANCE.md.
    """
    return _volume(attributed(traffic, steps), steps)


def _volume(inside: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    count = steps.height
    per_collective = (
        inside.group_by("collective")
        .agg(
            (pl.col("size_bytes").sum() / count / GIGA).alias("gb"),
            (pl.len() / count).alias("calls"),
            pl.col("size_bytes").is_not_null().any().alias("sized"),
        )
        .sort("gb", "collective", descending=[True, False])
    )
    sized = per_collective.filter("sized")
    messages = moving(inside).drop_nulls("size_bytes").group_by("collective").agg(pl.col("size_bytes").mean())
    return Measurement(
        float(inside.select(pl.col("size_bytes").sum()).item()) / count / GIGA,
        details={
            "per_collective_gb": dict(sized.select("collective", "gb").iter_rows()),
            "per_collective_calls": dict(per_collective.select("collective", "calls").iter_rows()),
            "per_collective_mean_message_bytes": dict(messages.sort("collective").iter_rows()),
            "per_rank_gb": by_rank(bytes_by_rank(inside, steps), "gb"),
            "unattributed_calls_count": inside["size_bytes"].null_count(),
        },
        window=CALLS_OF_STEPS,
        ranks=ranks_in(steps),
    )
