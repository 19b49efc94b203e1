"""The metric `traffic_window`: gaps between communication of different dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.groups import UNKNOWN
from ccl_bench.analysis.communication.traffic import known_sum, traffic_windows
from ccl_bench.analysis.statistics import spread
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS, ranks_in
from ccl_bench.metrics.traffic_distribution import (
    MOST_UNKNOWN,
    UNGROUPED,
    fix_of_dimensions,
    unknown_dimensions,
    unknown_share,
)

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@metric(unit="s", better="neither", applies=(checks.several_ranks,), revision=2)
def traffic_window(traffic: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> Measurement:
    """Mean gap between the communication of one parallelism dimension and the next of another.

    A window is communication of one dimension, merged over gaps in which no other dimension
    communicates. Windows are formed on each rank, in order of start, within each step.

    Formula:
        traffic_window = mean over pairs of consecutive windows of max(0, start of next - end of this)
        duty of a window = |U(communication)| / |window|

    Caveats:
        Overlapping windows have a gap of 0; the details state how many overlap. A step with one dimension
        has one window and no gap. Calls of unknown dimension are in no window: some are a finding, and if
        they are most of the calls, or of their time, there is no value.

    Reference:
        Own definition; the dimension of a call as in `traffic_distribution`.
    """
    inside = traffic.drop_nulls("step")
    checks.need_calls(inside, steps)
    vague = pl.col("dimension") == UNKNOWN
    if unknown_share(inside, vague) > MOST_UNKNOWN:
        raise NotMeasurable(
            f"{inside.filter(vague).height} of {inside.height} calls have an unknown parallelism dimension",
            fix=fix_of_dimensions(facts),
            is_repairable=True,
            causes=UNGROUPED,
        )
    windows = traffic_windows(inside.filter(~vague))
    gaps = windows.drop_nulls("gap_ns")
    if gaps.is_empty():
        names = " or ".join(sorted(windows["dimension"].unique()))
        raise NotMeasurable(
            f"no step holds communication of two different parallelism dimensions: it is all {names}",
            fix="nothing to fix: one dimension has no gap to another",
        )
    length = pl.col("end_ns") - pl.col("start_ns")
    dimensions = windows.group_by("dimension").agg(
        pl.len().alias("windows_count"),
        (length.mean() / SECOND_NS).alias("mean_length_s"),
        (pl.col("communication_ns").sum() / length.sum()).alias("duty_ratio"),
        known_sum("bytes").alias("total_bytes"),
        pl.col("calls").sum().alias("calls_count"),
    )
    waits = (gaps["gap_ns"].clip(0) / SECOND_NS).to_list()
    return Measurement(
        sum(waits) / len(waits),
        details={
            "gap_s": spread(waits),
            "overlapping_windows_count": gaps.filter(pl.col("gap_ns") < 0).height,
            "per_dimension": {row.pop("dimension"): row for row in dimensions.sort("dimension").to_dicts()},
        },
        window=CALLS_OF_STEPS,
        ranks=ranks_in(windows),
        findings=unknown_dimensions(inside, "they are in no window"),
    )
