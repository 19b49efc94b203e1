"""The metric `straggler`: which rank makes the others wait, and the time lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.stragglers import (
    NOISE_FLOOR,
    find_stragglers,
    in_steps_of,
    lag_of,
    lags,
    peers_of,
    persistence,
    waits_by_member,
    waits_by_rank_and_step,
)
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import RANK_STEP_TIMES, step_time_lag
from ccl_bench.metrics.shared.per_step import RECORD, by_rank, by_step, label, need_rows, ranks_in
from ccl_bench.metrics.shared.recorded_calls import FLIGHT_RECORDER, recorded_lag
from ccl_bench.metrics.shared.waiting import with_waiting_elsewhere
from ccl_bench.metrics.straggler_lag_16 import need_waits

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.result.details import GroupWait, LatenessCause, StragglerDetails

CAUSE_SHARE = 0.5
"""A cause is reported if it explains this share of the lag: more than all others together."""


def straggler_of_step_times(step_times: pl.DataFrame) -> Measurement:
    """Return the spread of the mean steps of the ranks in a file of step times, as a share of a step."""
    lag = step_time_lag(step_times)
    is_late = lag.lag_s >= NOISE_FLOOR * lag.step_s
    details: StragglerDetails = {
        "source": RANK_STEP_TIMES,
        "slowest_rank": lag.slowest_rank if is_late else "none",
        "late_ranks": [lag.slowest_rank] if is_late else [],
        "straggler_lag_s": lag.lag_s,
        "step_s": lag.step_s,
        "noise_floor_ratio": NOISE_FLOOR,
        "per_rank_s": lag.per_rank_s,
    }
    ratio = lag.lag_s / lag.step_s
    return Measurement(ratio, details, RANK_STEP_TIMES, lag.ranks, [lag.finding])


def straggler_of_recorded_calls(recorded_arrivals: pl.DataFrame, facts: Facts) -> Measurement:
    """Return the spread of the ranks' waiting in Flight Recorder dumps."""
    lag = recorded_lag(recorded_arrivals, facts)
    is_late = lag.lag_s >= NOISE_FLOOR * lag.recorded_s
    details: StragglerDetails = {
        "source": FLIGHT_RECORDER,
        "slowest_rank": lag.slowest_rank if is_late else "none",
        "late_ranks": [lag.slowest_rank] if is_late else [],
        "straggler_lag_s": lag.lag_s,
        "recorded_s": lag.recorded_s,
        "noise_floor_ratio": NOISE_FLOOR,
        "wait_s": lag.wait_s,
        "mean_lateness_s": lag.lateness_s,
        "calls_count": lag.calls,
    }
    if lag.clock_error_s is not None:
        details["clock_error_s"] = lag.clock_error_s
    ratio = lag.lag_s / lag.recorded_s
    return Measurement(ratio, details, f"calls in {FLIGHT_RECORDER}", lag.ranks, lag.findings)


@metric(
    unit="ratio",
    better="lower",
    applies=(checks.several_ranks,),
    otherwise=(straggler_of_recorded_calls, straggler_of_step_times),
    revision=4,
)
def straggler(
    waits: pl.DataFrame,
    steps: pl.DataFrame,
    breakdown: pl.DataFrame,
    facts: Facts,
    other_waits: pl.DataFrame | None = None,
) -> Measurement:
    """Time that ranks lose to their slowest peer, as a share of the step.

    Formula:
        straggler = straggler_lag / mean over steps of the slowest rank's step in the traces
        straggler_lag = mean over steps of (max over ranks of waiting - min over ranks of waiting). Where no
        trace shows waiting: the same over the calls in Flight Recorder dumps, where waiting runs from a
        rank's own call to the last member's, as a share of the time that the calls span. Without dumps:
        largest - smallest mean step of a rank in `step_times_per_rank.json`

    Caveats:
        The rank that waits least in its group is late, and the one that waits most loses time, so summed
        communication time points to the wrong rank. A rank that is late in one group because it waited in
        another only passes the delay on. The `slowest_rank` waits least in its group. If there are several,
        it is the one with more work than its peers, if that explains the lag (a late pipeline stage makes
        the next one late), else the one that caused most waiting. Groups across pipeline stages count in
        the lag but name no rank: stages end a step one after the other by design. Below 1 % of the step the
        answer is "none". Only symmetric collectives show waiting; `waiting_elsewhere_s` is the exposed
        waiting in rooted ones, uneven all-to-alls and messages that are not of a pipeline, until the last
        member starts on aligned clocks, and a finding from 5 % of the step on. The cause is the activity in
        which late ranks spend more time than their peers: compute, copies, or an idle device (the host); it
        explains at least half of the lag. Only steps count in which every trace has the same collectives; if
        there are none, traces that lack some are left out. Lag and step come from one recording. Step times
        show less than waiting: ranks that wait for each other end a step together. The Flight Recorder keeps
        the time of calls on the host; clocks of hosts are corrected only if ends of calls contradict them.

    Reference:
        Waiting as duration beyond the shortest member's: torch-tb-profiler and TraceLens; needs no clock.
    """
    need_rows(steps, "steps", RECORD)
    waits = in_steps_of(waits, steps)
    need_waits(waits, steps, breakdown)
    stragglers = find_stragglers(waits, steps, breakdown, facts)
    late, worst, step_ns = stragglers.late, stragglers.slowest, stragglers.step_ns
    ratio = stragglers.lag_ns / step_ns if step_ns else math.inf
    per_rank = (
        waits_by_rank_and_step(waits)
        .group_by("rank")
        .agg(
            (pl.col("wait_ns").mean() / SECOND_NS).alias("wait_s_per_step"),
            pl.col("arrived_last").sum().alias("arrived_last_count"),
            (pl.col("caused_ns").mean() / SECOND_NS).alias("caused_wait_s_per_step"),
        )
    )
    details: StragglerDetails = {
        "slowest_rank": str(worst) if worst is not None else "none",
        "late_ranks": [label(rank) for rank in late],
        "straggler_lag_s": stragglers.lag_ns / SECOND_NS,
        "per_step_ratio": by_step(lags(waits).with_columns(pl.col("lag_ns") / step_ns), "lag_ns"),
        "step_s": step_ns / SECOND_NS,
        "noise_floor_ratio": NOISE_FLOOR,
        "wait_s_per_step": by_rank(per_rank, "wait_s_per_step"),
        "arrived_last_count": by_rank(per_rank, "arrived_last_count"),
        "caused_wait_s_per_step": by_rank(per_rank, "caused_wait_s_per_step"),
        "persistence_ratio": 0.0
        if worst is None
        else persistence(stragglers.waits, worst, stragglers.floor_ns),
        "per_group": _per_group(waits_by_member(waits, stragglers.floor_ns)),
        "cause": _cause(breakdown, stragglers.members, late, late if worst is None else [worst]),
        "members_complete": bool(waits["complete"].all()),
    }
    measurement = Measurement(ratio, details, "matched collectives inside steps", ranks_in(waits))
    return with_waiting_elsewhere(measurement, other_waits, steps)


def _per_group(members: pl.DataFrame) -> dict[str, GroupWait]:
    """Return, for each process group, which rank waits least and how far apart its members are."""
    groups: dict[str, GroupWait] = {}
    for row in members.sort("group", "wait_ns", "rank").iter_rows(named=True):
        group: GroupWait = {
            "dimension": row["dimension"],
            "waits_least": label(row["rank"]) if row["least_alone"] else "none",
            "lag_s": row["lag_ns"] / SECOND_NS,
        }
        groups.setdefault(row["group"], group)
    return groups


def _cause(
    breakdown: pl.DataFrame, members: pl.DataFrame, late: list[int], named: list[int]
) -> LatenessCause:
    """Return the activity in which late ranks exceed their groups' members, and by how much, s a step.

    It is the cause where it explains enough of the lag.
    """
    others = {peer for rank in named for peer in peers_of(members, rank, late)}
    parts = {"compute": "compute_ns", "host": "idle_ns", "copies": "exposed_memory_ns"}
    of_late = breakdown.filter(pl.col("rank").is_in(named))
    of_peers = breakdown.filter(pl.col("rank").is_in([*others]))
    if of_late.is_empty() or of_peers.is_empty():
        return {}
    means = [
        frame.select(pl.col(column).mean().alias(name) for name, column in parts.items()).row(0, named=True)
        for frame in (of_late, of_peers)
    ]
    excess = {name: (means[0][name] - means[1][name]) / SECOND_NS for name in parts}
    largest = max(excess, key=lambda name: excess[name])
    explained = excess[largest] * SECOND_NS / lag_of(members, named)
    return {
        "kind": largest if explained >= CAUSE_SHARE else "unknown",
        "explained_ratio": max(explained, 0.0),
        "excess_s": excess,
    }
