"""Waiting and transfer, told apart without any clock, and who is late."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import cross_plain
import polars as pl
import pytest
from cross_runs import call, documents, group, matched, measured, rewrite, tables

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.testing import Expected, Host, Message, Plan, Straggler, damage, plans, trace_path, write_run

SECOND_US = 1e6


@cache
def durations(folder: Path) -> dict[int, list[float]]:
    """Return rank -> durations of its NCCL kernels in order of start, us."""
    found = {rank: cross_plain.nccl_kernels(trace) for rank, trace in documents(folder).items()}
    return {rank: [duration for _, duration in found[rank]] for rank in sorted(found)}


@pytest.fixture
def megatron(corpus: Path) -> Path:
    return corpus / "kineto" / "megatron-tp8"


def test_waits_of_the_tensor_parallel_run_are_those_of_a_plain_count(megatron: Path):
    waits = cross_plain.waits(durations(megatron))
    found = measured(megatron, "straggler").details["wait_s_per_step"]
    assert found == pytest.approx({str(rank): wait / SECOND_US for rank, wait in waits.items()})


def test_ranks_0_and_6_of_the_tensor_parallel_run_are_late(megatron: Path):
    # NCCL time is 241 ms on rank 0 and 264 ms on rank 6, 413 to 495 ms on the others
    totals = {rank: sum(row) / 1000 for rank, row in durations(megatron).items()}
    assert (round(totals[0]), round(totals[6])) == (241, 264)
    assert all(413 <= round(totals[rank]) <= 495 for rank in (1, 2, 3, 4, 5, 7))
    caused = cross_plain.caused(durations(megatron))
    details = measured(megatron, "straggler").details
    assert details["late_ranks"] == ["0", "6"]
    assert details["slowest_rank"] == str(max(caused, key=lambda rank: caused[rank])) == "0"
    told = {rank: value for rank, value in details["caused_wait_s_per_step"].items() if value}
    assert told == pytest.approx({str(rank): value / SECOND_US for rank, value in caused.items()})


def test_lag_of_the_tensor_parallel_run_is_that_of_a_plain_count(megatron: Path):
    waits = cross_plain.waits(durations(megatron)).values()
    lag = (max(waits) - min(waits)) / SECOND_US
    assert measured(megatron, "straggler_lag_16").value == pytest.approx(lag)
    # 626 ms is the slowest rank's one step
    assert measured(megatron, "straggler").value == pytest.approx(lag / 0.626, rel=1e-3)


def later(trace: dict[str, Any], us: int = 3000) -> None:
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += us


@pytest.fixture
def shifted(megatron: Path, tmp_path: Path) -> Path:
    """Return a copy of the tensor-parallel run with the clocks of ranks 4 to 7 3 ms ahead."""
    for path in megatron.iterdir():
        if int(path.name.split("_")[2][0]) < 4:
            shutil.copy(path, tmp_path)
        else:
            rewrite(path, later, tmp_path / path.name.removesuffix(".gz"))
    return tmp_path


def test_clocks_3_ms_ahead_change_no_wait_no_straggler_and_are_recovered(megatron: Path, shifted: Path):
    before, after = (tables(folder, "matched", "waits", "clock_offsets") for folder in (megatron, shifted))
    told = ["group", "number", "rank", "transfer_ns", "wait_ns"]
    assert (
        after["matched"]
        .sort("rank", "number")
        .select(told)
        .equals(before["matched"].sort("rank", "number").select(told))
    )
    assert after["waits"].drop("trace").equals(before["waits"].drop("trace"))
    names = ("slowest_rank", "late_ranks", "wait_s_per_step", "caused_wait_s_per_step", "cause")
    was, now = (measured(folder, "straggler") for folder in (megatron, shifted))
    assert (was.value, [was.details[name] for name in names]) == (
        now.value,
        [now.details[name] for name in names],
    )
    offsets = dict(after["clock_offsets"].select("rank", "offset_ns").iter_rows())
    ahead = [offsets[rank] - offsets[0] for rank in range(8)]
    assert all(abs(ahead[rank] - (3_000_000 if rank >= 4 else 0)) <= 50_000 for rank in range(8))
    assert after["clock_offsets"]["residual_ns"].max() <= 50_000


SLOW = Plan(dp_shard=4, tp=2, layers=3, stragglers=(Straggler(3, layer_ns=80_000),), jitter_ns=500)


def test_generated_waits_and_transfers_are_those_of_the_plan(tmp_path: Path):
    expected = write_run(SLOW, tmp_path)
    for row in (
        tables(tmp_path, "waits")["waits"].group_by("rank", "step").agg(pl.col("wait_ns").sum()).to_dicts()
    ):
        assert row["wait_ns"] == expected.wait_ns(row["rank"], row["step"])


def test_generated_clocks_3_ms_ahead_change_no_wait_and_are_recovered(tmp_path: Path):
    write_run(SLOW, tmp_path / "true")
    write_run(SLOW, tmp_path / "ahead")
    for rank in range(4, 8):
        damage.shift_clock(trace_path(tmp_path / "ahead", rank), 3_000_000)
    true, ahead = (tables(tmp_path / name, "waits", "clock_offsets") for name in ("true", "ahead"))
    assert ahead["waits"].equals(true["waits"])
    assert measured(tmp_path / "ahead", "straggler").details["slowest_rank"] == "3"
    offsets = dict(ahead["clock_offsets"].select("rank", "offset_ns").iter_rows())
    assert {rank: offsets[rank] - offsets[0] for rank in range(8)} == {
        r: 3_000_000 * (r >= 4) for r in range(8)
    }


def straggling(folder: Path, plan: Plan) -> tuple[dict[str, Any], Expected]:
    expected = write_run(plan, folder)
    return measured(folder, "straggler").details, expected


def test_the_late_rank_is_named_with_what_it_costs(tmp_path: Path):
    # rank 3 comes 50 us late to 8 collectives of each of 4 layers' passes at most; see the plan
    details, expected = straggling(tmp_path, plans.late_rank())
    caused = sum(
        max(meeting.wait_ns(rank) for rank in meeting.members)
        for meeting in expected.meetings
        if [rank for rank in meeting.members if meeting.wait_ns(rank) == 0] == [3]
    )
    assert (details["slowest_rank"], details["late_ranks"], details["persistence_ratio"]) == ("3", ["3"], 1.0)
    assert details["caused_wait_s_per_step"]["3"] == pytest.approx(caused / expected.plan.steps / 1e9)


def test_below_the_noise_floor_nobody_is_late(tmp_path: Path):
    details, expected = straggling(tmp_path, Plan(dp_shard=4, stragglers=(Straggler(2, layer_ns=2_000),)))
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
    details, _ = straggling(tmp_path, Plan(dp_shard=4, steps=4, stragglers=slow))
    assert (details["slowest_rank"], details["persistence_ratio"]) == ("1", 2 / 4)


@pytest.mark.parametrize(
    ("slow", "kind"),
    [(Straggler(1, layer_ns=200_000), "compute"), (Straggler(1, step_ns=600_000), "compute"), (Straggler(1, host_ns=600_000), "host")],
    ids=["every layer", "start of the step", "host"],
)  # fmt: skip
def test_the_cause_is_where_the_late_rank_spends_more_time(slow: Straggler, kind: str, tmp_path: Path):
    plan = Plan(dp_shard=4, layers=2, stragglers=(slow,), host=Host(steps_start_together=True))
    details, expected = straggling(tmp_path, plan)
    assert (details["slowest_rank"], details["cause"]["kind"]) == ("1", kind)
    column = {"compute": "compute_ns", "host": "idle_ns"}[kind]
    parts = {rank: [getattr(expected.parts(rank, s), column) for s in plan.step_numbers] for rank in range(4)}
    mean = {rank: sum(values) / len(values) for rank, values in parts.items()}
    excess = mean[1] - sum(mean[rank] for rank in (0, 2, 3)) / 3
    assert details["cause"]["excess_s"][kind] == pytest.approx(excess / 1e9)


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


def test_the_late_rank_of_one_stage_is_told_from_the_punctual_ranks_of_another(tmp_path: Path):
    # on stage 0 nobody waits at all: waiting little is no sign of being late there
    plan = Plan(pp=2, tp=2, microbatches=4, layers=1, stragglers=(Straggler(3, layer_ns=100_000),))
    details, _ = straggling(tmp_path, plan)
    assert (details["slowest_rank"], details["late_ranks"]) == ("3", ["3"])


def test_a_rank_whose_file_is_cut_short_is_not_taken_for_late(tmp_path: Path):
    write_run(Plan(dp_shard=4, steps=4, layers=4), tmp_path)
    damage.truncate(trace_path(tmp_path, 2), 0.85)
    assert measured(tmp_path, "straggler").details["slowest_rank"] == "none"


TWO = group("g", 0, 1)


def test_wait_is_what_exceeds_the_shortest_duration_whatever_the_clocks_say():
    # rank 1 runs 6 of the 10 ns that rank 0 runs; its clock is an hour ahead
    hour = 3_600 * 10**9
    found = matched([call(0, 1, 0, 10), call(1, 1, hour + 4, hour + 10)], TWO)
    assert found.select("rank", "transfer_ns", "wait_ns").rows() == [(0, 6, 4), (1, 6, 0)]
    waits = DERIVED.get("waits").compute(found)
    assert waits.select("rank", "wait_ns", "arrived_last", "caused_ns", "complete").rows() == [
        (0, 4, 0, 0, True), (1, 0, 1, 4, True),
    ]  # fmt: skip


def test_a_tie_has_no_last_rank():
    found = matched([call(0, 1, 0, 10), call(1, 1, 2, 12)], TWO)
    assert DERIVED.get("waits").compute(found)["arrived_last"].to_list() == [0, 0]


def test_with_a_member_missing_the_transfer_is_an_upper_bound_and_said_to_be():
    found = matched([call(0, 1, 0, 10), call(1, 1, 3, 10)], group("g", 0, 1, 2))
    assert found["transfer_ns"].to_list() == [7, 7]
    assert DERIVED.get("waits").compute(found)["complete"].to_list() == [False, False]


def test_two_ranks_that_are_not_known_stay_two():
    found = matched([call(t, 1, 3 * t, 10) | {"rank": None} for t in (0, 1)], TWO)
    assert DERIVED.get("waits").compute(found)["wait_ns"].to_list() == [3, 0]


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


def test_a_slow_stage_is_told_from_the_stages_it_keeps_waiting(tmp_path: Path):
    # rank 0 of stage 0 is slow; rank 2, stage 1 of the same replica, has no input and so comes late to its group too
    plan = Plan(pp=2, dp_shard=2, microbatches=4, layers=1, stragglers=(Straggler(0, layer_ns=200_000),))
    details, _ = straggling(tmp_path, plan)
    assert {"0", "2"} <= set(details["late_ranks"])
    assert (details["slowest_rank"], details["cause"]["kind"]) == ("0", "compute")


def test_ranks_of_different_stages_name_nobody_where_all_meet(tmp_path: Path):
    # every stage reduces one gradient norm: the first stage comes last, having got its last gradient last
    plan = Plan(pp=4, microbatches=4, layers=1, gradient_norm=Message(1, 5_000, "Float"))
    expected = write_run(plan, tmp_path)
    assert expected.wait_ns(3, 1) > expected.wait_ns(0, 1) == 0
    details = measured(tmp_path, "straggler").details
    assert details["straggler_lag_s"] > 0.01 * details["step_s"]
    assert details["late_ranks"] == []
