"""Conclusions on simulated runs: causes are named with their true gains, and healthy runs are left alone.

Some small runs of each cause, and small recorded ones; `make conclusions` checks hundreds, and large ones.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from count_conclusions import conclude
from drawn_runs import CAUSES, CLEAR, HIDDEN, Case, draw, draw_healthy
from job_author import build
from judge import judge
from recorded_conclusions import CORPUS, FOLDER, RECORDED, wrong
from training_job import Job, Program

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.result.diagnosis import Diagnosed, Opportunity, Verdict
from ccl_bench.run import open_run

SEED = 0

RUNS = {
    "slow_device": (2, 6),
    "late_host": (1,),
    "late_host_cpu": (3,),
    "rotating_pauses": (5,),
    "rotating_pauses_cpu": (0,),
    "rotating_collections": (7,),
    "data_loader": (5, 8),
    "data_loader_cpu": (4,),
    "collections": (1,),
    "compilation": (3,),
    "module_loading": (5,),
    "named_pauses": (0,),
    "first_rank_saves": (0,),
    "unnamed_pauses": (3,),
    "launch_bound": (0,),
    "synchronisation": (2,),
    "small_messages": (0,),
    "exposed_collectives": (4,),
    "slow_group": (5,),
    "slow_calls": (7,),
    "uneven_stages": (5,),
    "copies": (3,),
    "recomputation": (6,),
    "warm_up": (0,),
    "outlier_steps": (4,),
    "hidden_late_host": (6,),
    "hidden_loader": (0,),
    "hidden_collections": (0,),
    "hidden_pauses": (1,),
    "hidden_copies": (2,),
}
"""Cause → numbers of small runs; some wait for their device and some do not, whatever the cause."""

HEALTHY = (1, 3, 5)
"""Numbers of healthy runs: of one that waits for its device, one that does not, and one without a device."""


def test_there_are_runs_of_every_cause() -> None:
    assert RUNS.keys() == CAUSES.keys()


@pytest.mark.parametrize(("name", "number"), [(name, number) for name in RUNS for number in RUNS[name]])
def test_a_cause_is_named_with_its_true_gain(name: str, number: int) -> None:
    judgement = conclude(name, SEED, number, None)
    assert judgement.is_right, f"{judgement.regime}: {judgement.truth}, but the answer is {judgement.answer}"


@pytest.mark.parametrize("number", HEALTHY)
def test_a_healthy_run_is_left_alone(number: int) -> None:
    judgement = conclude("healthy", SEED, number, None)
    assert judgement.is_right, f"{judgement.regime}: {judgement.truth}, but the answer is {judgement.answer}"


@pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")
@pytest.mark.parametrize("name", ["gloo-gc", "gloo-late-rank", "resnet-loader"])
def test_the_cause_of_a_recorded_run_is_named(name: str) -> None:
    assert wrong(RECORDED[name], diagnose(open_run(FOLDER / name), jobs=1)) == []


@pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")
def test_what_is_known_of_recorded_runs_is_their_truth() -> None:
    """`truth.json` has the step and the gain of the two that were simulated with a cause."""
    truth = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
    for name in ("late_host", "gc_even"):
        gain_ms = RECORDED[name].gain_ms
        assert gain_ms is not None
        assert sum(gain_ms) / 2 == pytest.approx(truth[name]["gain_ms"], rel=0.001)
        assert RECORDED[name].step_ms == pytest.approx(truth[name]["wall_per_step"], rel=0.001)


# What is judged right: a cause that costs 10 of 50 ms.

LATE = Case("late_host:0", Program(Job(), []), step_s=0.050, gain_s=0.010, rules=("late_ranks",), ranks=(1,))


def found(*named: tuple[str, list[int], float | None], step_s: float = 0.050) -> Diagnosed:
    """Return an answer with diagnoses of some ranks and gains."""
    opportunities = [
        Opportunity(name, "", f"title of {name}", "", ranks, [], None, gain_s, None, "")
        for name, ranks, gain_s in named
    ]
    return Diagnosed("run", Verdict(step_s, {}, 2, 4, on_device=True), opportunities)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (found(("late_ranks", [1], 0.0109)), (True, True, True)),
        (found(("late_ranks", [1], 0.0111)), (True, False, True)),
        (found(("late_ranks", [0], 0.010)), (False, False, True)),
        (found(("launch_bound", [], 0.010)), (False, False, True)),
        (found(("late_ranks", [1], None)), (False, False, True)),
        (found(("launch_bound", [], 0.0101), ("late_ranks", [1], 0.010)), (True, True, True)),
        (found(("launch_bound", [], 0.0103), ("late_ranks", [1], 0.010)), (False, False, True)),
        (found(("late_ranks", [1], 0.010), step_s=0.0504), (True, True, True)),
        (found(("late_ranks", [1], 0.010), step_s=0.0506), (True, True, False)),
        (found(), (False, False, True)),
    ],
)
def test_right_is_the_first_name_with_its_ranks_and_a_gain_within_a_tenth(
    answer: Diagnosed, expected: tuple[bool, bool, bool]
) -> None:
    judgement = judge(LATE, answer)
    assert (judgement.is_named, judgement.is_gain_right, judgement.is_length_right) == expected


def test_small_gains_may_be_off_by_some_launches() -> None:
    small = replace(LATE, step_s=0.005, gain_s=0.001)
    assert judge(small, found(("late_ranks", [1], 0.00129), step_s=0.005)).is_gain_right
    assert not judge(small, found(("late_ranks", [1], 0.00131), step_s=0.005)).is_gain_right


def test_a_diagnosis_that_is_true_as_well_may_gain_what_it_truly_gains() -> None:
    case = replace(LATE, also={"exposed_collectives": 0.020})
    own = ("late_ranks", [1], 0.010)
    assert judge(case, found(("exposed_collectives", [], 0.022), own)).is_named
    assert not judge(case, found(("exposed_collectives", [], 0.023), own)).is_named
    assert not judge(case, found(("launch_bound", [], 0.020), own)).is_named


def test_a_title_must_name_the_range_of_the_program() -> None:
    assert judge(replace(LATE, word="of late"), found(("late_ranks", [1], 0.010))).is_named
    assert not judge(replace(LATE, word="save_checkpoint"), found(("late_ranks", [1], 0.010))).is_named


def test_nothing_is_right_of_a_healthy_run_and_a_refused_replay_is_not_nothing() -> None:
    healthy = Case("healthy:0", Program(Job(), []), 0.050)
    assert judge(healthy, found()).is_right
    alarm = judge(healthy, found(("late_ranks", [1], 0.010)))
    assert (alarm.is_named, alarm.alarms) == (False, ("late_ranks",))
    assert not judge(healthy, replace(found(), why_no_gains="too much is unexplained")).is_named


# What is drawn.


def test_a_drawn_cause_costs_what_is_demanded_and_a_hidden_one_nothing() -> None:
    clear, hidden = draw("late_host", SEED, 0), draw("hidden_loader", SEED, 0)
    assert clear.gain_s >= CLEAR * clear.step_s
    assert clear.rules == ("late_ranks",)
    assert abs(hidden.gain_s) <= HIDDEN * hidden.step_s
    assert hidden.rules == ()
    assert len(build(hidden.program.job).steps[0][-1]) == len(hidden.program.steps[0][-1])


def test_the_same_seed_draws_the_same_run() -> None:
    first, second = (draw("data_loader", SEED, 8) for _ in range(2))
    assert (first.program.job, first.program.steps) == (second.program.job, second.program.steps)
    assert draw("data_loader", SEED + 1, 8).program.job != first.program.job
    assert draw_healthy(SEED, 5).program.steps == draw_healthy(SEED, 5).program.steps
