"""Scenarios of generated runs come to what the plan with that change takes, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ccl_bench.run import open_run
from ccl_bench.testing import Host, Plan, Straggler, plans, timeline, write_run
from ccl_bench.whatif import RunReplays, load_run_graph

if TYPE_CHECKING:
    from pathlib import Path

PLANS = {
    "late rank": replace(plans.late_rank(), dp_shard=4),
    "two ranks": replace(plans.two_ranks(), stragglers=(Straggler(1, layer_ns=70_000),)),
    "pipelines": Plan(dp_shard=2, pp=2, microbatches=4, stragglers=(Straggler(1, layer_ns=90_000),)),
    "prefetching": Plan(dp_shard=2, tp=2, stragglers=(Straggler(3, layer_ns=80_000),)),
    "late host": Plan(dp_shard=3, stragglers=(Straggler(2, host_ns=900_000),)),
    "device behind": Plan(
        dp_shard=3, stragglers=(Straggler(2, layer_ns=90_000),), host=Host(waits_for_device=False)
    ),
    "clocks apart": Plan(
        dp_shard=4, stragglers=(Straggler(2, layer_ns=90_000),), clock_offsets_ns={1: 7_000_000, 3: -400}
    ),
}


def lengths_ns(plan: Plan) -> list[int]:
    """Return what each step takes on the slowest rank, from the end of the one before if that is later."""
    found, ended = [], [0] * plan.world_size
    for records in timeline(plan).steps:
        ends = [max(record.host_end_ns, record.device_end_ns) for record in records]
        begins = [max(record.host_start_ns, end) for record, end in zip(records, ended, strict=True)]
        found.append(max(end - begin for begin, end in zip(begins, ends, strict=True)))
        ended = ends
    return found


@pytest.fixture(scope="module", params=list(PLANS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, RunReplays]:
    plan = PLANS[request.param]
    folder = tmp_path_factory.mktemp("run")
    write_run(plan, folder)
    return plan, RunReplays(load_run_graph(open_run(folder), use_cache=False))


def test_the_run_replays_as_it_was(made: tuple[Plan, RunReplays]) -> None:
    plan, replays = made
    expected = lengths_ns(plan)
    assert (replays.recorded_s * 1e9).round().tolist() == expected
    assert (replays.steps_s([replays.recorded])[0] * 1e9).round().tolist() == expected


def test_without_the_straggler_it_takes_what_the_healthy_plan_takes(made: tuple[Plan, RunReplays]) -> None:
    plan, replays = made
    slow = replays.matches("rank", str(plan.stragglers[0].rank))
    found = replays.steps_s([replays.without(slow)])[0]
    assert (found * 1e9).round().tolist() == lengths_ns(replace(plan, stragglers=()))


def test_a_faster_kernel_takes_what_the_plan_with_it_takes(made: tuple[Plan, RunReplays]) -> None:
    plan, replays = made
    faster = replays.scaled(replays.matches("kernel", "adam"), 0.5)
    expected = lengths_ns(replace(plan, optimizer_ns=plan.optimizer_ns // 2))
    assert (replays.steps_s([faster])[0] * 1e9).round().tolist() == expected


def test_what_is_named_last_is_the_straggler(made: tuple[Plan, RunReplays]) -> None:
    plan, replays = made
    alone = {
        name: replays.steps_s([replays.ideal_but(replays.matches("rank", name))])[0].mean()
        for name in map(str, range(plan.world_size))
    }
    assert max(alone, key=lambda name: alone[name]) == str(plan.stragglers[0].rank)


def test_hosts_that_take_no_time_replay_to_the_step_of_the_plan(tmp_path: Path) -> None:
    """All their calls begin at once: work without length must not wait for itself."""
    plan = plans.even_pipeline(2, 2)
    write_run(plan, tmp_path)
    replays = RunReplays(load_run_graph(open_run(tmp_path)))
    assert (replays.steps_s([replays.recorded])[0] * 1e9).round().tolist() == lengths_ns(plan)
