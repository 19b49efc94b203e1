"""Ranks, stages and hosts that are slow by plan are named, and worth what the plan without them saves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from injected import TOGETHER, diagnosed, healthy, only, pipeline, step_s

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run
from ccl_bench.testing import Host, Plan, Straggler

SLOW_STAGE = {"forward_ns": (300_000,) * 3 + (500_000,), "backward_ns": (600_000,) * 3 + (1_000_000,)}

INJECTED = {
    "late host": (healthy, {"stragglers": (Straggler(2, host_ns=2_000_000),)}, "late_ranks", [2]),
    "two late hosts": (
        healthy,
        {"stragglers": (Straggler(2, host_ns=2_000_000), Straggler(5, host_ns=2_000_000)), "dp_shard": 8},
        "late_ranks",
        [2, 5],
    ),
    "slow device": (healthy, {"stragglers": (Straggler(1, layer_ns=200_000),)}, "slow_device", [1]),
    "slow rank of a stage": (pipeline, {"stragglers": (Straggler(2, layer_ns=300_000),)}, "slow_device", [2]),
    "slow last stage": (pipeline, SLOW_STAGE, "uneven_stages", [6, 7]),
}
"""Name → plan, what is injected, the diagnosis, the ranks."""


@pytest.mark.parametrize("case", INJECTED)
def test_an_injected_cause_is_named_and_worth_what_the_plan_saves(case: str, tmp_path: Path) -> None:
    make, injected, name, ranks = INJECTED[case]
    without = {key: value for key, value in injected.items() if key == "dp_shard"}
    found = only(diagnosed(make(**injected), tmp_path))
    assert (found.name, found.ranks) == (name, ranks)
    gain_s = step_s(make(**injected)) - step_s(make(**without))
    assert found.gain_s == pytest.approx(gain_s, abs=1e-9)
    assert {each.rank for each in found.evidence} <= set(ranks)


def test_a_rank_that_is_slow_in_some_steps_is_seen_in_those(tmp_path: Path) -> None:
    late = Straggler(3, host_ns=2_000_000, steps=(2, 5, 8))
    found = only(diagnosed(healthy(steps=8, stragglers=(late,)), tmp_path))
    assert (found.name, found.ranks, found.steps) == ("late_ranks", [3], [2, 5, 8])
    assert found.gain_s == pytest.approx(3 / 8 * 0.002, abs=1e-9)
    assert found.gain_error == pytest.approx(0, abs=1e-9)


def test_hosts_that_launch_slowly_are_named_with_half_their_time(tmp_path: Path) -> None:
    slow = Host(launch_ns=400_000, steps_start_together=True)
    found = only(diagnosed(healthy(host=slow), tmp_path))
    assert found.name == "launch_bound"
    assert found.gain_s == pytest.approx(step_s(healthy(host=slow)) / 2, rel=0.01)


@pytest.mark.parametrize(
    "plan",
    [
        healthy(),
        healthy(jitter_ns=30_000, steps=6),
        pipeline(),
        pipeline(jitter_ns=10_000),
        Plan(tp=2, dp_replicate=2, host=TOGETHER),
    ],
    ids=["sharded", "sharded with noise", "pipeline", "pipeline with noise", "tensor-parallel"],
)
def test_a_healthy_run_is_left_alone(plan: Plan, tmp_path: Path) -> None:
    found = diagnosed(plan, tmp_path)
    assert found.diagnoses == []
    assert found.why_no_gains == ""


CORPUS = os.environ.get("CCL_BENCH_CORPUS")


@pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")
def test_the_slow_worker_and_stage_of_a_recorded_pipeline_are_named_in_their_steps() -> None:
    """Scenarios alternate by twos: clean, slow (rank 1), last (ranks 3 and 7), over 24 steps."""
    run = Path(str(CORPUS)) / "injected-pp" / "train-pp4-dp2"
    found = {each.name: each for each in diagnose(open_run(run), jobs=1).diagnoses}
    slow = {step for step in range(24) if step % 6 in {2, 3}}
    last = {step for step in range(24) if step % 6 in {4, 5}}
    assert found.keys() == {"late_ranks", "uneven_stages"}
    assert found["late_ranks"].ranks == [1]
    assert len(slow & {*found["late_ranks"].steps}) >= 0.9 * len(slow)
    assert found["uneven_stages"].ranks == [3, 7]
    assert len(last & {*found["uneven_stages"].steps}) >= 0.9 * len(last)
