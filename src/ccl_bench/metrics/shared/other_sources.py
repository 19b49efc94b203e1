"""Second sources of a number: a file of step times, and Execution Traces alone."""

from __future__ import annotations

from dataclasses import dataclass

from ccl_bench.analysis.steps.steps import mean_step_ns
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.per_step import by_rank, label, ranks_in, window_of
from ccl_bench.result import WHOLE_TRACE

RANK_STEP_TIMES = "step_times_per_rank.json"
WRITE = f"write the seconds of the same steps for every rank into {RANK_STEP_TIMES}"
OTHER_SOURCE = "other-source"
"""Code of the finding that a value comes from another source than usual."""


@dataclass(frozen=True, slots=True)
class StepTimeLag:
    """The largest minus the smallest mean step of a rank, over the steps that all ranks have."""

    lag_s: float
    step_s: float
    """Mean over steps of the slowest rank's step."""
    slowest_rank: str
    per_rank_s: dict[str, float]
    ranks: list[int]

    @property
    def finding(self) -> Finding:
        """The remark on a value that is computed from it."""
        message = (
            f"from {RANK_STEP_TIMES}: the largest minus the smallest mean step of {len(self.ranks)} ranks, "
            "over the steps that all of them have; ranks that wait for each other end a step "
            "together, so the lag may be larger"
        )
        return Finding(OTHER_SOURCE, "note", message, RANK_STEP_TIMES)


def step_time_lag(step_times: pl.DataFrame) -> StepTimeLag:
    """Return the lag between ranks, or raise NotMeasurable if no file has the steps of several."""
    rank_times = step_times.filter(pl.col("source") == RANK_STEP_TIMES)
    ranks = rank_times["rank"].n_unique()
    if ranks == 0:
        raise NotMeasurable(f"the run has no {RANK_STEP_TIMES}", fix=WRITE)
    if ranks == 1:
        raise NotMeasurable(
            f"{RANK_STEP_TIMES} holds step times of rank {rank_times['rank'][0]} alone", fix=WRITE
        )
    shared = rank_times.filter(pl.col("rank").n_unique().over("step") == ranks)
    if shared.is_empty():
        raise NotMeasurable(f"the {ranks} ranks of {RANK_STEP_TIMES} have no step in common", fix=WRITE)
    means = shared.group_by("rank").agg(pl.col("duration_ns").mean() / SECOND_NS)
    ordered = means.sort("duration_ns", "rank", descending=[True, False])
    return StepTimeLag(
        ordered["duration_ns"][0] - ordered["duration_ns"][-1],
        mean_step_ns(shared) / SECOND_NS,
        label(ordered["rank"][0]),
        by_rank(means, "duration_ns"),
        ranks_in(shared),
    )


RECORDS = "records of the NCCL Inspector"


def inspector_finding() -> Finding:
    """Return the remark on a value from the NCCL Inspector."""
    message = "from records of the NCCL Inspector: a sample of the calls, of the whole run and of no step"
    return Finding(OTHER_SOURCE, "note", message)


WINDOW = "calls of steps in Execution Traces"


def calls_in_steps(et_traffic: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of Execution Traces that belong to a step; NotMeasurable without any."""
    inside = et_traffic.drop_nulls("step")
    if inside.is_empty():
        raise NotMeasurable(
            "no Execution Trace holds a communication call in a step",
            fix="record with torch.profiler.ExecutionTraceObserver around whole steps of every rank",
        )
    return inside


def source_finding(et_steps: pl.DataFrame, calls: pl.DataFrame | None = None) -> Finding:
    """Return the remarks on a value from these calls of Execution Traces."""
    remarks = ["from Execution Traces, whose operators show what ran but not when"]
    if WHOLE_TRACE in window_of(et_steps):
        remarks.append("they mark no steps: the whole trace counts as one")
    if calls is not None and (alone := calls.height - moving(calls).height):
        remarks.append(f"{alone} of {calls.height} calls are in groups of one rank: calls that move 0 bytes")
    return Finding(OTHER_SOURCE, "note", "; ".join(remarks))


def moving(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls without those in a group of one rank, which moves nothing."""
    return calls.filter(pl.col("size").ne_missing(1))
