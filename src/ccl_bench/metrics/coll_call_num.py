"""The metric `coll_call_num`: collective calls in a step."""

from __future__ import annotations

from dataclasses import replace

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import calls_in_steps, source_finding
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    label,
    need_rows,
    ranks_in,
    step_labels,
    window_of,
)


def calls_of_execution_traces(et_traffic: pl.DataFrame, et_steps: pl.DataFrame) -> Measurement:
    """Return the communication operators of one rank per step, from its Execution Trace."""
    inside = calls_in_steps(et_traffic)
    window = f"{window_of(et_steps)} of Execution Traces"
    measurement = _measurement(inside, et_steps)
    return replace(measurement, window=window, findings=[source_finding(et_steps, inside)])


@metric(
    unit="calls",
    better="neither",
    applies=(checks.several_ranks,),
    aliases=("coll_call_num_16",),
    otherwise=(calls_of_execution_traces,),
    revision=3,
)
def coll_call_num(calls: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Collective calls that one GPU issues in one step.

    Counted on the lowest rank present: its communication kernels that its steps launched,
    divided by its number of steps.

    Formula:
        coll_call_num = communication kernels of steps / steps

        of Execution Traces alone: operators that communicate / steps

    Caveats:
        A kernel whose launch was not recorded belongs to the step in whose device window it starts, and to
        none if it was launched before the recording. A batched send and receive is one kernel and one call.
        In an Execution Trace each operator is one call, even in a group of one rank, for which NCCL may
        start no kernel. A `barrier` is a call. On a run without a device, each `gloo:*` range that starts
        in a step is one call. Ranks of a pipeline issue different numbers of calls; the details list them
        all. Kernels of DeepEP that only exchange counts (`notify_dispatch`) are calls too.

    Reference:
        Kernel names and `Collective name`: PyTorch Kineto, ParamCommsUtils.hpp.
    """
    need_rows(steps, "steps", RECORD)
    inside = calls.drop_nulls("step")
    if inside.is_empty() and not calls.is_empty():
        raise NotMeasurable(
            f"communication was recorded only outside the steps: {counted(calls.height, 'call')}",
            fix=checks.fix_of_steps(
                steps, "mark the steps around it in the training script, or choose them with --marker"
            ),
        )
    if inside.is_empty():
        raise NotMeasurable(
            "no communication was recognised in any step, but the run may have several ranks",
            fix=checks.fix_of_steps(
                steps, "check that the traces are of all ranks, or write world_size into run_metadata.json"
            ),
        )
    return _measurement(inside, steps)


def _measurement(inside: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    counts = inside.group_by("trace", "step").agg(pl.len().alias("calls"))
    per_step = (
        steps.select("trace", "rank", "iteration", "step")
        .join(counts, on=["trace", "step"], how="left", maintain_order="left")
        .with_columns(pl.col("calls").fill_null(0).cast(pl.Int64))
    )
    per_rank = per_step.group_by("rank").agg(pl.col("calls").mean()).sort("rank", nulls_last=True)
    lowest, calls_in_step = per_rank.row(0)
    if not calls_in_step:
        raise NotMeasurable(
            f"the trace of the lowest rank, {label(lowest)}, holds no communication; others do",
            fix="record communication on every rank, or leave that trace out of the run",
        )
    is_lowest = pl.col("rank").eq_missing(pl.lit(lowest, dtype=pl.Int64))
    rank_steps = per_step.filter(is_lowest)
    # A mean, because several traces may be of no known rank.
    means = rank_steps.group_by("iteration", "step").agg(pl.col("calls").mean()).sort("iteration", "step")
    sizes = inside.filter(is_lowest).group_by("collective").agg(pl.len().alias("calls")).sort("collective")
    return Measurement(
        calls_in_step,
        details={
            "rank": label(lowest),
            "per_rank": by_rank(per_rank, "calls"),
            "per_step": dict(zip(step_labels(means), means["calls"], strict=True)),
            "per_collective": {name: calls / rank_steps.height for name, calls in sizes.iter_rows()},
        },
        window=window_of(steps),
        ranks=ranks_in(steps),
    )
