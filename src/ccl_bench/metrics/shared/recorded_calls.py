"""How far apart ranks arrive at their collectives, from Flight Recorder dumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.clocks import format_duration
from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.other_sources import OTHER_SOURCE
from ccl_bench.metrics.shared.per_step import RECORD, by_rank, label, ranks_in

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

FLIGHT_RECORDER = "Flight Recorder dumps"
CLOCKS = "recorder-clocks"
"""Code of the finding that clocks of several hosts may differ by more than the lag of ranks."""


@dataclass(frozen=True, slots=True)
class RecordedLag:
    """The largest minus the smallest time that a rank waited for the last member of its groups to call."""

    lag_s: float
    recorded_s: float
    """From the first to the last call."""
    slowest_rank: str
    """The rank that waits least."""
    wait_s: dict[str, float]
    lateness_s: dict[str, float]
    """Mean over calls of how long after the first member a rank called."""
    calls: int
    ranks: list[int]
    clock_error_s: float | None
    findings: list[Finding]


def recorded_lag(arrivals: pl.DataFrame, facts: Facts) -> RecordedLag:
    """Return the lag between ranks, or raise NotMeasurable if no call or no clock shows it.

    Time that a rank waits in several calls at once counts once.
    """
    if arrivals.is_empty():
        raise NotMeasurable("the run holds no steps", fix=RECORD)
    span_ns = int(arrivals.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item())
    meetings = arrivals.select("number", "sequence").n_unique()
    if meetings < 2 or not span_ns:
        reason = "the dumps of the Flight Recorder have fewer than two calls that all members made"
        raise NotMeasurable(reason, fix="set TORCH_FR_BUFFER_SIZE=2000, so that more calls are kept")
    # None where no end of a call compares the clocks of ranks.
    error_ns: int | None = arrivals.select(pl.col("clock_error_ns").max()).item()
    ranks_in_job, of_node = facts.world_size, facts.devices_per_node
    if error_ns is None and ranks_in_job and of_node and ranks_in_job.value > of_node.value:
        reason = "ranks are on several hosts, and the dumps hold no end of a call to compare their clocks"
        raise NotMeasurable(reason, fix="record with torch.profiler, whose traces need no common clock")
    source = f"from {FLIGHT_RECORDER}: when hosts made {meetings} calls, not when devices did them"
    largest_ns = max(map(abs, arrivals["clock_shift_ns"]))
    if error_ns is None:
        clocks = (
            "clocks of ranks are used as recorded, which is correct on one host: the "
            "dumps hold no ends of calls"
        )
    elif largest_ns:
        shift, left = format_duration(largest_ns), format_duration(error_ns)
        clocks = (
            f"ends of calls contradict the clocks: up to {shift} was corrected, and up to {left} may remain"
        )
    else:
        apart = format_duration(error_ns)
        clocks = f"clocks are as recorded, and at most {apart} apart, as ends of calls show"
    merged = (
        merge_intervals(arrivals, "rank").group_by("rank").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    ranks = arrivals.select(pl.col("rank").unique().sort())
    waits = ranks.join(merged.rename({"end_ns": "wait_ns"}), on="rank", how="left").select(
        "rank", (pl.col("wait_ns").fill_null(0) / SECOND_NS).alias("wait_s")
    )
    ordered = waits.sort("wait_s", "rank")
    lag_s = ordered["wait_s"][-1] - ordered["wait_s"][0]
    late = arrivals.group_by("rank").agg((pl.col("lateness_ns").mean() / SECOND_NS).alias("late_s"))
    return RecordedLag(
        lag_s,
        span_ns / SECOND_NS,
        label(ordered["rank"][0]),
        by_rank(waits, "wait_s"),
        by_rank(late, "late_s"),
        meetings,
        ranks_in(arrivals),
        None if error_ns is None else error_ns / SECOND_NS,
        [Finding(OTHER_SOURCE, "note", source), Finding(CLOCKS, "warning", clocks)],
    )
