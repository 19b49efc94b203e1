"""The metric `load_imbalance_ratio`: compute time of the busiest rank over the mean."""

from __future__ import annotations

from operator import itemgetter

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_step,
    mean_over_ranks,
    need_rows,
    ranks_in,
    seconds_by_rank,
    window_of,
)


@metric(unit="ratio", better="lower", applies=(checks.several_ranks,), revision=3)
def load_imbalance_ratio(breakdown: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Compute time of the busiest rank over the mean of all ranks: 1 is even.

    Formula:
        load_imbalance_ratio = max over ranks of compute time in a step / mean over ranks

        compute time is |U(compute)|, mean over the steps of the rank.

    Caveats:
        Stages of a pipeline differ by design, and a slower device counts like more work. Ranks
        without a trace are not in the mean.

    Reference:
        Load imbalance of Pipit, HPCToolkit and others: maximum over mean.
    """
    need_rows(breakdown, "steps", RECORD)
    times = seconds_by_rank(breakdown, steps, "compute_ns")
    if len(times) < 2:
        raise NotMeasurable(
            "only one rank has a trace, but imbalance compares ranks", fix="record the traces of all ranks"
        )
    mean = mean_over_ranks(times)
    if not mean:
        raise NotMeasurable("no rank computed in any step", fix=RECORD)
    compute = pl.col("compute_ns")
    ratios = breakdown.group_by("iteration", "step").agg((compute.max() / compute.mean()).alias("ratio"))
    busiest, most = max(times.items(), key=itemgetter(1))
    return Measurement(
        most / mean,
        details={
            "busiest_rank": busiest,
            "max_s": most,
            "mean_s": mean,
            "min_s": min(times.values()),
            "per_rank_s": times,
            "per_step_ratio": by_step(ratios.filter(pl.col("ratio").is_finite()), "ratio"),
        },
        window=window_of(steps),
        ranks=ranks_in(breakdown),
    )
