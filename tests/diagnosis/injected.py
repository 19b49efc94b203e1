"""Generated runs in which a cause is injected, and what each costs: counted from the plan, not the traces."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run
from ccl_bench.testing import (
    Copy,
    Experts,
    Host,
    Message,
    Plan,
    SlowLink,
    Straggler,
    timeline,
    trace_path,
    write_run,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result.diagnosis import Diagnosed, Opportunity

TOGETHER = Host(steps_start_together=True)
"""A host whose steps start on all ranks at once, so that a late rank is late in each step anew."""

SHARDED = Plan(
    dp_shard=4,
    steps=3,
    host=TOGETHER,
    all_gather=Message(4_194_304, 30_000),
    reduce_scatter=Message(4_194_304, 30_000, "Float"),
)
"""Four ranks that shard their weights, all alike, and hide nearly all communication."""

PAIR = replace(SHARDED, dp_shard=2)
WIDE = replace(SHARDED, dp_shard=6)
PIPELINE = replace(SHARDED, pp=2, dp_shard=2, steps=2, layers=1, microbatches=10, host=Host())
"""Two stages of two ranks each, all alike."""

REPLICAS = replace(SHARDED, dp_replicate=2, dp_shard=2, gradient_all_reduce=Message(4_194_304, 30_000))
STALLED = replace(PAIR, host=replace(TOGETHER, gap_ns=1_500_000))
UNSTALLED = replace(PAIR, host=replace(TOGETHER, gap_ns=0))
BY_TURNS = tuple(
    Straggler(rank, host_ns=2_000_000, steps=(1 + rank, 5 + rank)) for rank in range(SHARDED.dp_shard)
)
"""Each rank's host pauses in other steps."""

EXPERTS = replace(SHARDED, ep=4, experts=Experts(((100,) * 4,) * 4, ns_per_token=500))


@dataclass(frozen=True)
class Case:
    """A cause, the run that has it, the one that has not, and what must be said of it."""

    plan: Plan
    without: Plan
    diagnosis: str
    ranks: tuple[int, ...] = ()
    marked: str = ""
    """Name of a range, or of a call, that covers the time at the start of each step in which hosts idle."""
    category: str = "user_annotation"


CASES = {
    "late host": Case(
        replace(SHARDED, stragglers=(Straggler(2, host_ns=2_000_000),)), SHARDED, "late_ranks", (2,)
    ),
    "two late hosts": Case(
        replace(WIDE, stragglers=(Straggler(2, host_ns=2_000_000), Straggler(5, host_ns=2_000_000))),
        WIDE,
        "late_ranks",
        (2, 5),
    ),
    "slow device": Case(
        replace(SHARDED, stragglers=(Straggler(1, layer_ns=200_000),)), SHARDED, "slow_device", (1,)
    ),
    "slow rank of a stage": Case(
        replace(PIPELINE, stragglers=(Straggler(2, layer_ns=300_000),)), PIPELINE, "slow_device", (2,)
    ),
    "slow last stage": Case(
        replace(
            PIPELINE,
            forward_ns=(300_000, 500_000),
            backward_ns=(600_000, 1_000_000),
        ),
        PIPELINE,
        "uneven_stages",
        (2, 3),
    ),
    "uneven experts": Case(
        replace(EXPERTS, experts=Experts(((50, 25, 225, 100),) * 4, ns_per_token=500)),
        EXPERTS,
        "uneven_experts",
        (2,),
    ),
    "slow link": Case(
        replace(REPLICAS, slow_links=(SlowLink((2, 3), 400_000),)), REPLICAS, "slow_group", (2, 3)
    ),
    "slow link in one step": Case(
        replace(PAIR, steps=8, slow_links=(SlowLink((0, 1), 900_000, (3, 5, 7)),)),
        replace(PAIR, steps=8),
        "slow_calls",
    ),
    "slow launches": Case(
        replace(PAIR, host=replace(TOGETHER, launch_ns=400_000)),
        replace(PAIR, host=replace(TOGETHER, launch_ns=200_000)),
        "launch_bound",
    ),
    "data loader": Case(
        STALLED,
        UNSTALLED,
        "data_loading",
        (),
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ),
    "garbage collection": Case(STALLED, UNSTALLED, "garbage_collection", (), "gc.collect"),
    "pause without a name": Case(STALLED, UNSTALLED, "host_pauses"),
    "named pause": Case(STALLED, UNSTALLED, "host_pauses", (), "evaluation"),
    "pauses by turns": Case(
        replace(SHARDED, steps=8, stragglers=BY_TURNS), replace(SHARDED, steps=8), "host_pauses"
    ),
    "compilation": Case(
        STALLED, UNSTALLED, "compilation_in_steps", (), "_compile.compile_inner (dynamo_timed)", "cpu_op"
    ),
    "module loading": Case(
        STALLED, UNSTALLED, "compilation_in_steps", (), "cuLibraryLoadData", "cuda_driver"
    ),
    "copies": Case(
        replace(PAIR, input_copy=Copy(10_000_000, 1_000_000)),
        replace(PAIR, input_copy=Copy(10_000_000, 0)),
        "copies_in_step",
    ),
    "recomputation": Case(
        replace(PAIR, recomputed_layers=2),
        PAIR,
        "recomputation",
    ),
    "exposed gathers": Case(
        replace(PAIR, prefetch=False, all_gather=Message(4_194_304, 200_000)),
        replace(PAIR, prefetch=False, all_gather=Message(4_194_304, 0), reduce_scatter=Message(1, 0)),
        "exposed_collectives",
    ),
    "small messages": Case(
        replace(SHARDED, dp_shard=1, tp=2, layers=8, tp_all_reduce=Message(1_000, 40_000)),
        replace(SHARDED, dp_shard=1, tp=2, layers=8, tp_all_reduce=Message(1_000, 5_000)),
        "small_messages",
    ),
    "warm-up": Case(
        replace(
            PAIR, steps=6, stragglers=tuple(Straggler(r, step_ns=5_000_000, steps=(1,)) for r in range(2))
        ),
        replace(PAIR, steps=6),
        "warm_up",
    ),
    "outlier": Case(
        replace(
            PAIR, steps=8, stragglers=tuple(Straggler(r, step_ns=5_000_000, steps=(5,)) for r in range(2))
        ),
        replace(PAIR, steps=8),
        "outlier_steps",
    ),
}
"""What is injected → the run."""

HEALTHY = {
    "sharded": SHARDED,
    "sharded with noise": replace(SHARDED, jitter_ns=30_000, steps=6),
    "more noise": replace(SHARDED, jitter_ns=60_000, steps=8, seed=3),
    "wide": WIDE,
    "replicated": REPLICAS,
    "replicated with noise": replace(REPLICAS, jitter_ns=30_000, steps=6, seed=1),
    "pipeline": PIPELINE,
    "pipeline with noise": replace(PIPELINE, jitter_ns=10_000, seed=2),
    "even experts": replace(EXPERTS, experts=Experts(((100,) * 4,) * 4, ns_per_token=500, transfer_ns=5_000)),
}
"""Runs in which nothing is wrong."""


def step_s(plan: Plan) -> float:
    """Return the length of the mean step of a plan: of its slowest rank, from start to end of its host."""
    steps = timeline(plan).steps
    lengths = [max(each.host_end_ns - each.host_start_ns for each in step) for step in steps]
    return sum(lengths) / len(lengths) / 1e9


def diagnosed(plan: Plan, folder: Path) -> Diagnosed:
    """Return the diagnoses of the run that a plan makes."""
    write_run(plan, folder)
    return diagnose(open_run(folder), jobs=1, use_cache=False)


def diagnosed_case(case: Case, folder: Path) -> Diagnosed:
    """Return the diagnoses of the run of a case."""
    write_run(case.plan, folder)
    if case.marked:
        for rank in case.plan.present_ranks:
            _mark(trace_path(folder, rank), case)
    return diagnose(open_run(folder), jobs=1, use_cache=False)


def _mark(trace: Path, case: Case) -> None:
    """Add the event that explains why the host idles at the start of each step."""
    content = json.loads(trace.read_text(encoding="utf-8"))
    steps = [each for each in content["traceEvents"] if str(each.get("name")).startswith("ProfilerStep#")]
    marks = [
        step | {"name": case.marked, "cat": case.category, "dur": case.plan.host.gap_ns / 1000, "args": {}}
        for step in steps
        if step["ph"] == "X" and step["cat"] == "user_annotation"
    ]
    content["traceEvents"] += marks
    trace.write_text(json.dumps(content), encoding="utf-8")


def only(found: Diagnosed) -> Opportunity:
    """Return the one opportunity that was found."""
    assert [each.name for each in found.diagnoses] == [each.name for each in found.diagnoses[:1]]
    return found.diagnoses[0]
