"""Who is late, who only passes a delay on, and why."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cross_runs import facts, frame, measured
from recorded_runs import results_of

from ccl_bench import metrics
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.testing import Expected, Host, Message, Plan, Straggler, damage, plans, trace_path, write_run


def straggling(folder: Path, plan: Plan) -> tuple[dict[str, Any], Expected]:
    expected = write_run(plan, folder)
    return measured(folder, "straggler").details, expected


def test_the_late_rank_is_named_with_what_it_costs(tmp_path: Path):
    details, expected = straggling(tmp_path, replace(plans.late_rank(), dp_shard=4))
    caused = sum(
        max(operation.wait_ns(rank) for rank in operation.members)
        for operation in expected.operations
        if [rank for rank in operation.members if operation.wait_ns(rank) == 0] == [3]
    )
    assert (details["slowest_rank"], details["late_ranks"], details["persistence_ratio"]) == ("3", ["3"], 1.0)
    assert details["caused_wait_s_per_step"]["3"] == pytest.approx(caused / expected.plan.steps / 1e9)
    lag_s = details["step_s"] * sum(details["per_step_ratio"].values()) / expected.plan.steps
    assert lag_s == pytest.approx(details["straggler_lag_s"])


def test_below_the_noise_floor_nobody_is_late(tmp_path: Path):
    details, _ = straggling(tmp_path, Plan(dp_shard=3, stragglers=(Straggler(2, layer_ns=2_000),)))
    assert 0 < details["straggler_lag_s"] < 0.01 * details["step_s"]
    assert (details["slowest_rank"], details["late_ranks"]) == ("none", [])


def test_ranks_that_come_together_have_no_straggler_and_no_default(tmp_path: Path):
    details, _ = straggling(tmp_path, plans.two_ranks())
    assert (details["slowest_rank"], details["late_ranks"], details["persistence_ratio"]) == ("none", [], 0.0)
    assert {one["waits_least"] for one in details["per_group"].values()} == {"none"}


def test_two_ranks_equally_late_are_both_named_and_neither_is_the_slowest(tmp_path: Path):
    slow = (Straggler(1, layer_ns=90_000), Straggler(2, layer_ns=90_000))
    details, _ = straggling(tmp_path, Plan(dp_shard=4, prefetch=False, stragglers=slow))
    assert (details["slowest_rank"], details["late_ranks"]) == ("none", ["1", "2"])


def test_persistence_counts_the_steps_in_which_the_rank_was_late(tmp_path: Path):
    slow = (Straggler(1, layer_ns=300_000, steps=(2, 4)),)
    details, _ = straggling(tmp_path, Plan(dp_shard=2, steps=4, stragglers=slow))
    assert (details["slowest_rank"], details["persistence_ratio"]) == ("1", 2 / 4)


@pytest.mark.parametrize(
    ("slow", "kind"),
    [
        (Straggler(1, layer_ns=200_000), "compute"),
        (Straggler(1, step_ns=600_000), "compute"),
        (Straggler(1, host_ns=600_000), "host"),
    ],
    ids=["every layer", "start of the step", "host"],
)
def test_the_cause_is_where_the_late_rank_spends_more_time(slow: Straggler, kind: str, tmp_path: Path):
    plan = Plan(dp_shard=3, layers=2, stragglers=(slow,), host=Host(steps_start_together=True))
    details, expected = straggling(tmp_path, plan)
    assert (details["slowest_rank"], details["cause"]["kind"]) == ("1", kind)
    column = {"compute": "compute_ns", "host": "idle_ns"}[kind]
    parts = {rank: [getattr(expected.parts(rank, s), column) for s in plan.step_numbers] for rank in range(3)}
    mean = {rank: sum(values) / len(values) for rank, values in parts.items()}
    excess = mean[1] - (mean[0] + mean[2]) / 2
    assert details["cause"]["excess_s"][kind] == pytest.approx(excess / 1e9)


WAITS_NS = {0: 0, 1: 2_000, 2: 9_500, 3: 9_500}


def by_hand(work_ns: dict[int, int], idle_ns: dict[int, int]) -> dict[str, Any]:
    """Return the details of `straggler` of one step of 50 us in one group, with `WAITS_NS`."""
    key = {"iteration": None, "step": 1, "group": "g", "dimension": "dp", "collectives": 1, "complete": True}
    waits = [key | {"trace": r, "rank": r, "wait_ns": w, "caused_ns": 0} for r, w in WAITS_NS.items()]
    steps = [
        {"trace": r, "rank": r, "step": 1, "start_ns": 0, "end_ns": 50_000, "length_ns": 50_000}
        for r in WAITS_NS
    ]
    parts = [
        {"trace": r, "rank": r, "step": 1, "compute_ns": work_ns.get(r, 0), "idle_ns": idle_ns.get(r, 0)}
        | {"exposed_memory_ns": 0}
        for r in WAITS_NS
    ]
    metric = metrics.load().get("straggler")
    tables = (frame("waits", waits), frame("steps", steps), frame("breakdown", parts), facts())
    return dict(metric.compute(*tables).details)


def test_the_rank_that_waits_least_is_the_slowest_whatever_another_late_one_computes():
    # rank 1 computes 8 us more than its peers and still waited 2 us for rank 0
    details = by_hand({1: 8_000}, {})
    assert (details["slowest_rank"], details["late_ranks"]) == ("0", ["0", "1"])


@pytest.mark.parametrize(("excess_ns", "kind"), [(600, "unknown"), (4_600, "unknown"), (4_800, "host")])
def test_a_cause_that_explains_less_than_half_of_the_lag_is_not_named(excess_ns: int, kind: str):
    # the lag is 9.5 us
    cause = by_hand({}, {0: excess_ns})["cause"]
    assert cause["kind"] == kind
    assert cause["explained_ratio"] == pytest.approx(excess_ns / 9_500)
    assert cause["excess_s"]["host"] == pytest.approx(excess_ns / 1e9)


def test_of_a_real_lag_of_9_ms_an_idle_device_of_less_than_one_is_no_cause(corpus: Path):
    details = results_of(corpus / "kineto" / "dlrm-8rank")["straggler"].details
    assert details["straggler_lag_s"] == pytest.approx(9.465e-3, rel=1e-3)
    assert details["cause"]["excess_s"]["host"] < 1e-3
    assert details["cause"]["kind"] == "unknown"


def test_a_delay_that_is_passed_on_from_group_to_group_has_one_author(tmp_path: Path):
    # rank 3 delays rank 2 over tp, so that both come late to their dp_shard groups
    plan = Plan(dp_shard=2, tp=2, prefetch=False, stragglers=(Straggler(3, layer_ns=150_000),))
    details, _ = straggling(tmp_path, plan)
    assert details["per_group"]["mesh_dp_shard 0,2"]["waits_least"] == "2"
    assert (details["slowest_rank"], details["late_ranks"]) == ("3", ["3"])


def test_stages_of_a_pipeline_do_not_blame_each_other(tmp_path: Path):
    # stages compute for different times; within a stage nobody is late
    plan = Plan(
        pp=2, tp=2, microbatches=4, layers=1, forward_ns=(100_000, 300_000), backward_ns=(200_000, 600_000)
    )
    details, _ = straggling(tmp_path, plan)
    assert (details["slowest_rank"], details["late_ranks"]) == ("none", [])


def test_the_late_rank_of_one_stage_is_distinguished_from_the_punctual_ranks_of_another(tmp_path: Path):
    # on stage 0 nobody waits at all: waiting little is no sign of being late there
    plan = Plan(pp=2, tp=2, microbatches=4, layers=1, stragglers=(Straggler(3, layer_ns=100_000),))
    details, _ = straggling(tmp_path, plan)
    assert (details["slowest_rank"], details["late_ranks"]) == ("3", ["3"])


def test_a_rank_whose_file_is_cut_short_is_not_taken_for_late(tmp_path: Path):
    write_run(Plan(dp_shard=3, steps=4, layers=4), tmp_path)
    damage.truncate(trace_path(tmp_path, 2), 0.85)
    assert measured(tmp_path, "straggler").details["slowest_rank"] == "none"


def test_a_step_in_which_one_rank_waits_for_a_long_time_counts_once_in_the_mean(tmp_path: Path):
    plan = Plan(
        dp_shard=2,
        steps=2,
        gradient_norm=Message(1, 100, "Float"),
        stragglers=(Straggler(0, step_ns=500_000, steps=(1,)),),
    )
    _, expected = straggling(tmp_path, plan)
    lags = [abs(expected.wait_ns(0, step) - expected.wait_ns(1, step)) for step in plan.step_numbers]
    assert measured(tmp_path, "straggler_lag_16").value == pytest.approx(sum(lags) / 2 / 1e9)


def test_a_slow_stage_is_distinguished_from_the_stages_it_keeps_waiting(tmp_path: Path):
    # rank 0 of stage 0 is slow; rank 2, stage 1 of the same replica, lacks input and so comes late as well
    plan = Plan(pp=2, dp_shard=2, microbatches=4, layers=1, stragglers=(Straggler(0, layer_ns=200_000),))
    details, _ = straggling(tmp_path, plan)
    assert {"0", "2"} <= set(details["late_ranks"])
    assert (details["slowest_rank"], details["cause"]["kind"]) == ("0", "compute")


def test_ranks_of_different_stages_name_nobody_where_all_meet(tmp_path: Path):
    # every stage reduces one gradient norm: the first stage comes last, having got its last gradient last
    plan = Plan(pp=2, microbatches=4, layers=1, gradient_norm=Message(1, 5_000, "Float"))
    expected = write_run(plan, tmp_path)
    assert expected.wait_ns(1, 1) > expected.wait_ns(0, 1) == 0
    details = measured(tmp_path, "straggler").details
    assert details["straggler_lag_s"] > 0.01 * details["step_s"]
    assert details["late_ranks"] == []


def test_lag_and_step_are_of_the_same_recording(tmp_path):
    """A file of step times taken without a profiler tells of other steps than those that were traced."""
    run = tmp_path / "run"
    write_run(Plan(dp_shard=2, stragglers=(Straggler(1, layer_ns=90_000),)), run)
    (alone,) = evaluate(open_run(run), ["straggler"], jobs=1, use_cache=False)
    (run / "step_times.json").write_text("[1000.0, 1000.0, 1000.0]")
    (beside,) = evaluate(open_run(run), ["straggler"], jobs=1, use_cache=False)
    assert beside.value == alone.value
    assert beside.details["step_s"] < 1
