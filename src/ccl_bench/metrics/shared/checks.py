"""Conditions of metrics: when a metric applies, and what must be recorded to compute it.

A condition returns why a metric does not apply to a run, or None; an unknown fact is no reason. A check
raises where communication, kernels, launches or ranges were not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.intervals import CHOSEN_PROGRAM, DEVICE_RANGE
from ccl_bench.analysis.steps.marks import FORMAT_RANGE
from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics.shared.per_step import RECORD, label, need_rows

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


UNMATCHED = (
    *("ranks-missing", "groups-ambiguous", "members-missing", "collectives-disagree", "collectives-lacking"),
    *("no-common-step", "steps-not-found"),
)
"""Findings that explain why calls have no match on another rank, the most likely first."""

UNSIZED = (*UNMATCHED, "calls-without-size", "calls-unpaired")
"""Findings that explain why no matched call has a size."""

OF_TRAINING = "if the run trains, write phase: training into the workload card; if it serves, "
"""Beginning of the fix where nothing shows that a run serves; left out where its phase is known."""

_NO_COMMUNICATION = "no communication was recognised in any step"
_ALL_RANKS = "check that the traces are of all ranks, or write world_size 1 into run_metadata.json"


def several_ranks(facts: Facts) -> str | None:
    """Communication needs a partner."""
    if facts.world_size and facts.world_size.value == 1:
        return f"the run has one rank (world_size 1 in {facts.world_size.source}), so nothing is communicated"
    return None


def training(facts: Facts) -> str | None:
    """The metric is defined for training."""
    if facts.phase and facts.phase.value != "training":
        return f"it is defined for training, and this run is {facts.phase.value} ({facts.phase.source})"
    return None


def inference(facts: Facts) -> str | None:
    """The metric is defined for inference."""
    if facts.phase and facts.phase.value != "inference":
        return f"it is defined for inference, and this run is {facts.phase.value} ({facts.phase.source})"
    return None


def pipeline(facts: Facts) -> str | None:
    """The metric is about pipeline stages."""
    if facts.pp and facts.pp.value == 1:
        return f"the run has no pipeline (pp is 1 in {facts.pp.source})"
    return None


def experts_on_devices(facts: Facts) -> str | None:
    """The metric is about experts that several devices share."""
    if facts.is_moe and not facts.is_moe.value:
        return f"the model has no experts ({facts.is_moe.source})"
    if facts.ep and facts.ep.value == 1:
        return f"no devices share the experts (ep is 1 in {facts.ep.source})"
    return None


_OF_PROFILES = frozenset({DEVICE_RANGE, CHOSEN_PROGRAM, FORMAT_RANGE})
"""Sources of steps that only profiles of XLA have."""


def fix_of_steps(steps: pl.DataFrame, otherwise: str) -> str:
    """Return the fix if the steps hold no call: in a profile of XLA another program may hold them."""
    if _OF_PROFILES.isdisjoint(steps["source"].cast(pl.String)):
        return otherwise
    return "choose the program that communicates with --program, or ranges of the host with --marker"


def need_communication(breakdown: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Raise NotMeasurable if nothing communicated in any step, which a run of several ranks does."""
    need_rows(breakdown, "steps", RECORD)
    if not breakdown["communication_ns"].sum():
        raise NotMeasurable(_NO_COMMUNICATION, fix=fix_of_steps(steps, _ALL_RANKS), is_repairable=True)


def need_calls(calls: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Raise NotMeasurable if no step holds a call."""
    need_rows(steps, "steps", RECORD)
    if calls.is_empty():
        raise NotMeasurable(_NO_COMMUNICATION, fix=fix_of_steps(steps, _ALL_RANKS))


def need_kernels(kernel_time: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Raise NotMeasurable if no kernel ran in any step."""
    need_rows(steps, "steps", RECORD)
    if not kernel_time["duration_ns"].sum():
        raise NotMeasurable(
            "the traces hold no kernels in any step",
            fix="record CUDA activity with torch.profiler; a run on CPUs has no kernels",
        )


def need_launches(launching: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Raise NotApplicable on a run without a device, NotMeasurable if launches were not recorded."""
    need_rows(steps, "steps", RECORD)
    if launching.is_empty():
        raise NotApplicable(
            "the traces hold no work of a device: the run was on CPUs, or CUDA activity was not recorded"
        )
    if not launching["launches"].sum():
        raise NotMeasurable(
            "no launch is recorded in any step, so the launch time of work is unknown",
            fix="record CPU and CUDA activity with torch.profiler",
        )


def need_sharding(fsdp: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> None:
    """Raise if no trace holds ranges of FSDP: NotApplicable unless the run is known to shard weights."""
    need_rows(steps, "steps", RECORD)
    if not fsdp.is_empty():
        return
    degree = facts.dp_shard
    if degree and degree.value > 1:
        raise NotMeasurable(
            f"dp_shard is {degree.value} in {degree.source}, but the traces hold no ranges of FSDP",
            fix="record CPU activity with torch.profiler; FSDP2 marks FSDP::all_gather and the like",
        )
    raise NotApplicable("the traces hold no ranges of FSDP, and nothing states that weights are sharded")


def need_attribution(fsdp: pl.DataFrame) -> None:
    """Raise NotMeasurable if a rank was inside ranges of FSDP and nothing that ran was launched there."""
    totals = fsdp.group_by("rank").agg(pl.col("host_ns", "work_ns").sum()).sort("rank")
    without = totals.filter((pl.col("host_ns") > 0) & (pl.col("work_ns") == 0))["rank"]
    if without.is_empty():
        return
    ranks = ", ".join(label(rank) for rank in without)
    raise NotMeasurable(
        f"the traces hold ranges of FSDP, but no work can be traced back to them (rank {ranks})",
        fix="record CPU and CUDA activity with torch.profiler, launches included",
    )
