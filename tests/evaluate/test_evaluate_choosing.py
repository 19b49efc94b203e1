"""Chosen steps: every number is of those alone, says so, and what cannot be chosen is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from recordings import recording
from small_runs import NVIDIA_A100, codes, step_events, write, write_ranks

from ccl_bench import metrics
from ccl_bench.base.errors import UsageError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import to_json
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice, step_choice
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, Straggler, write_run
from ccl_bench.testing.expected import values

if TYPE_CHECKING:
    from pathlib import Path

STEP = "iteration_wall_clock_time"


def measured(folder: Path, *names: str, choice: StepChoice = EVERY_STEP, **more) -> list:
    """Return the results of metrics for chosen steps of a run, read anew."""
    return evaluate(open_run(folder, choice=choice), names, use_cache=False, jobs=1, **more)


def in_us(*lengths: int, rank: int = 0) -> dict:
    """Return the trace of one of two ranks whose steps take so long, us; step n, from 0, has n + 1 calls."""
    at, events = 0, []
    for number, length in enumerate(lengths):
        events += step_events(number, at, length=length, calls=number + 1)
        at += length
    return {"schemaVersion": 1, "deviceProperties": [NVIDIA_A100], "traceEvents": events} | {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}
    }


def in_ranks(folder: Path, *lengths: int) -> Path:
    """Write the traces of two ranks whose steps take so long, us."""
    for rank in range(2):
        write(folder / f"kineto_trace_{rank}.json", in_us(*lengths, rank=rank))
    return folder


@pytest.fixture
def transient(tmp_path: Path) -> Path:
    """Return a run with a step of 2 s, then five of 10 ms."""
    return in_ranks(tmp_path, 2_000_000, *[10_000] * 5)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory):
    """Return a generated run of four ranks with six steps, and its answers."""
    folder = tmp_path_factory.mktemp("chosen")
    plan = Plan(
        dp_shard=2, pp=2, microbatches=2, steps=6, jitter_ns=20_000,
        stragglers=(Straggler(rank=1, layer_ns=40_000),),
    )  # fmt: skip
    return folder, write_run(plan, folder)


@pytest.fixture(scope="module")
def whole(planned: tuple) -> list:
    """Return every metric of that run, over all its steps."""
    return measured(planned[0], *metrics.load().names())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of torch with six ranges of a name of its own, numbered anew in each epoch."""
    return recording(tmp_path_factory, "chosen ranges")


class OfSteps:
    """The answers to a run, over some of its steps."""

    def __init__(self, whole: object, steps: list[int]) -> None:
        """Take the answers to the whole run, or its plan, and the numbers of the steps."""
        self._whole, self.step_numbers, self.steps = whole, steps, len(steps)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._whole, name)
        return OfSteps(found, self.step_numbers) if name == "plan" else found


def test_warm_up_stays_in_the_number_and_is_reported_with_what_it_would_be_without(transient: Path):
    # (2 + 5 · 0.01) / 6 = 0.34167 s
    found = measured(transient, STEP, "coll_call_num", "gpu_busy", "exposed_communication_time")

    assert found[0].value == pytest.approx(2.05 / 6)
    assert found[0].details["spread_s"]["p50"] == pytest.approx(0.01)
    for result in found:
        (finding,) = [f for f in result.findings if f.code == "warmup-steps"]
        assert finding.severity == "warning"
        assert "step 0 takes 2 s" in finding.message
        assert "0.3417 s, without it (--skip-steps 1) 0.01 s" in finding.message


@pytest.mark.parametrize("chosen", [step_choice(skip=1), step_choice("1-5"), step_choice("1,5,2-4")])
def test_without_the_first_step_every_number_is_of_the_others(transient: Path, chosen: StepChoice):
    time, calls = measured(transient, STEP, "coll_call_num", choice=chosen)

    assert time.value == pytest.approx(0.01)
    assert calls.value == (2 + 3 + 4 + 5 + 6) / 5
    assert [codes(time), codes(calls)] == [["steps-unequal"], ["steps-unequal"]]
    assert list(calls.details["per_step"]) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("steps", ["2", "2,4,6"])
def test_numbers_of_chosen_steps_are_those_of_the_plan(planned: tuple, steps: str):
    run, expected = planned
    chosen = step_choice(steps)
    numbers = [step for step in expected.plan.step_numbers if chosen.has(step)]
    known = values(OfSteps(expected, numbers))
    of_layers = {"token_to_expert_assignment"}
    asked = sorted(known.keys() - of_layers)

    found = {result.metric: result for result in measured(run, *asked, choice=chosen)}

    assert len(asked) > 12
    assert {name: found[name].value for name in asked} == pytest.approx({name: known[name] for name in asked})
    assert {found[name].provenance.steps for name in asked} == {chosen}


def test_a_choice_of_every_step_changes_no_number(planned: tuple, whole: list):
    run, expected = planned
    first, *_, last = expected.plan.step_numbers
    names = metrics.load().names()
    every, usual = measured(run, *names, choice=step_choice(f"{first}-{last}")), whole
    plain = [
        replace(
            one,
            window=other.window,
            findings=[f for f in one.findings if f.code != "choice-without-effect"],
            provenance=replace(one.provenance, steps=None),
        )
        for one, other in zip(every, usual, strict=True)
    ]
    assert to_json(plain) == to_json(usual)


def test_each_step_is_what_it_is_among_all(planned: tuple, whole: list):
    run, _ = planned
    of_the_mean_step = {"straggler"}  # its shares are of the mean of the chosen steps
    names = [name for name in metrics.load().names() if name not in of_the_mean_step]
    some = measured(run, *names, choice=step_choice("3,5"))
    compared = 0
    among_all = {result.metric: result.details for result in whole}
    for one in some:
        for key, of_step in one.details.items():
            if key.startswith("per_step"):
                assert of_step == {step: among_all[one.metric][key][step] for step in ("3", "5")}
                compared += 1
    assert compared > 10


def test_skipping_leaves_out_the_first_steps_of_each_recording_window(tmp_path: Path):
    for window in (10, 20):
        write_ranks(tmp_path / f"iteration_{window}", steps=(1, 2, 3), length=window * 10)

    (found,) = measured(tmp_path, STEP, choice=step_choice(skip=2))

    assert list(found.details["per_step_s"]) == ["10:3", "20:3"]


def test_a_result_says_which_steps_were_chosen(transient: Path):
    chosen = step_choice("1-3", 1)
    (found,) = measured(transient, STEP, choice=chosen)

    assert found.window == "ProfilerStep, steps 1-3 without the first 1"
    assert json.loads(to_json([found]))[0]["provenance"]["steps"] == {
        "numbers": "1-3",
        "skip": 1,
        "marker": "",
        "program": "",
    }
    assert measured(transient, STEP)[0].provenance.steps is None


def test_a_number_that_is_not_of_steps_says_that_the_choice_does_not_matter(planned: tuple):
    (found,) = measured(planned[0], "peak_memory_allocated", choice=step_choice("2"))
    assert found.value is None or "choice-without-effect" in codes(found)


def test_steps_of_a_side_file_are_chosen_likewise(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_times.json", [9.0, 1.0, 2.0, 3.0])

    (skipped,) = measured(tmp_path, STEP, choice=step_choice(skip=1))
    (named,) = measured(tmp_path, STEP, choice=step_choice("1"))

    assert skipped.value == pytest.approx(2.0)
    assert named.value == pytest.approx(1.0)
    assert named.window == "step_times.json, step 1"


def test_a_side_file_without_the_chosen_steps_gives_way_to_the_traces(tmp_path: Path):
    write(write_ranks(tmp_path, steps=(7, 8)) / "step_times.json", [9.0, 1.0])

    (found,) = measured(tmp_path, STEP, choice=step_choice("7"))

    assert found.value == pytest.approx(100e-6)
    assert "chosen-steps-missing" in codes(found)


def test_a_side_file_says_nothing_of_ranges_that_a_marker_names(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_times.json", [9.0, 1.0])

    (found,) = measured(tmp_path, STEP, choice=step_choice(marker=r"Step#(\d+)"))

    assert found.window == "chosen range, marked by 'Step#(\\\\d+)'"
    assert found.value == pytest.approx(100e-6)


def test_a_marker_names_the_steps_before_all_other_sources(tmp_path: Path):
    for rank in range(2):
        trace = in_us(1_000, 1_000, 1_000, rank=rank)
        mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
        trace["traceEvents"] += [
            mark | {"name": name, "ts": at, "dur": length}
            for name, at, length in (("pair 4", 0, 2_000), ("pair 5", 2_000, 500))
        ]
        write(tmp_path / f"kineto_trace_{rank}.json", trace)

    time, calls = measured(tmp_path, STEP, "coll_call_num", choice=step_choice(marker=r"pair (\d+)"))

    assert time.details["per_step_s"] == pytest.approx({"4": 0.002, "5": 0.0005})
    assert calls.details["per_step"] == {"4": 1 + 2, "5": 3}


def test_ranges_of_a_recording_are_counted_where_their_numbers_repeat(recorded: Path):
    (found,) = measured(recorded, STEP, choice=step_choice(marker=r"^my pass (\d)$"))

    assert list(found.details["per_step_s"]) == ["0", "1", "2", "3", "4", "5"]
    assert [*found.details["per_step_s"].values()] == pytest.approx(outer_ranges_s(recorded))


def test_nested_ranges_of_a_recording_count_once(recorded: Path):
    (found,) = measured(recorded, STEP, choice=step_choice("1-5", marker="my pass"))

    assert len(found.details["per_step_s"]) == 5
    assert found.value == pytest.approx(fmean(outer_ranges_s(recorded)[1:]))


def outer_ranges_s(recorded: Path) -> list[float]:
    """Return the lengths of the ranges that lie in no other, s, from the file itself."""
    events = json.loads((recorded / "trace_rank0.json").read_text())["traceEvents"]
    ranges = [e for e in events if re.fullmatch(r"my pass \d", str(e.get("name"))) and "dur" in e]
    return [event["dur"] / 1e6 for event in sorted(ranges, key=lambda event: event["ts"])]


def test_a_marker_that_names_no_range_is_answered_with_those_that_there_are(recorded: Path):
    with pytest.raises(UsageError, match="no range matches 'my_pas 1'") as caught:
        measured(recorded, STEP, choice=step_choice(marker="my_pas 1"))
    assert caught.value.fix.startswith("did you mean my pass 1")
    with pytest.raises(UsageError) as caught:
        measured(recorded, STEP, choice=step_choice(marker="@"))
    assert "my pass inside" in caught.value.fix


def test_ranges_that_overlap_are_reported(tmp_path: Path):
    trace = in_us(1_000)
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "name": "mine"}
    spans = ((1, 0, 400), (2, 300, 400), (1, 800, 100))
    trace["traceEvents"] += [mark | {"tid": tid, "ts": at, "dur": length} for tid, at, length in spans]
    write(tmp_path / "kineto_trace_0.json", trace)

    (found,) = measured(tmp_path, STEP, choice=step_choice(marker="mine"))

    assert found.details["per_step_s"] == pytest.approx({"0": 400e-6, "1": 100e-6})
    assert [f.count for f in found.findings if f.code == "marker-overlaps"] == [1]


@pytest.mark.parametrize(
    ("chosen", "said", "fix"),
    [
        (step_choice("4-7"), "no trace contains step 6, 7", "there are 0, 1, 2, 3, 4, 5"),
        (step_choice("0-999999999999"), "no trace contains step 6, 7, 8", "there are 0, 1, 2, 3, 4, 5"),
        (step_choice(skip=6), "no step remains of 0, 1, 2, 3, 4, 5: without the first 6", "fewer"),
        (step_choice("0", 1), "no step remains", "fewer"),
    ],
)
def test_steps_that_are_not_there_are_refused(transient: Path, chosen: StepChoice, said: str, fix: str):
    with pytest.raises(UsageError) as caught:
        measured(transient, STEP, choice=chosen)
    assert said in caught.value.message
    assert fix in caught.value.fix


def test_a_rank_without_a_chosen_step_is_named(tmp_path: Path):
    write_ranks(tmp_path, ranks=2, steps=(1, 2))
    whole = json.loads((tmp_path / "kineto_trace_1.json").read_text())
    ranges = [e for e in whole["traceEvents"] if e["name"] != "ProfilerStep#2"]
    write(tmp_path / "kineto_trace_1.json", whole | {"traceEvents": ranges})

    (found,) = measured(tmp_path, STEP, choice=step_choice("2"))

    assert found.ranks == [0]
    (finding,) = [f for f in found.findings if f.code == "chosen-steps-missing"]
    assert finding.rank == 1


def test_a_run_without_steps_has_nothing_to_choose_from(tmp_path: Path):
    write(tmp_path / "bench.json", {"a": 1})
    write(tmp_path / "training_metrics.json", [{"step": 1, "loss": 2.0}])
    write(tmp_path / "run_metadata.json", {"world_size": 1})
    (found,) = measured(tmp_path, STEP, choice=step_choice("3"))
    assert found.status == "not_measurable"


def test_a_choice_means_the_same_however_it_is_written():
    assert step_choice("5, 3-4,3") == step_choice("3-5")
    assert fmean(step for step in range(10) if step_choice("1-3,7").has(step)) == (1 + 2 + 3 + 7) / 4
    assert not EVERY_STEP
    assert step_choice(skip=0) == EVERY_STEP


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a", None, None), "'a' is not a list of steps"),
        (("4-2", None, None), "'4-2' is not a list of steps"),
        (("", None, None), "'' is not a list of steps"),
        (("1-", None, None), "'1-' is not a list of steps"),
        (("٣", None, None), "is not a list of steps"),
        (("1-9999999999999999999", None, None), "is not a list of steps"),
        ((",".join(map(str, range(0, 1_000, 2))), None, None), "characters of steps are too many"),
        ((None, 10**30, None), "steps cannot be skipped"),
        ((None, -1, None), "-1 steps cannot be skipped"),
        ((None, None, "("), "'(' is not a regular expression: unclosed group"),
        ((None, None, "(?=a)"), "look-around"),
        ((None, None, ""), "a marker has 1 to 1,000 characters, not 0"),
        ((None, None, "a{1000}{1000}{1000}"), "exceeds size limit"),
    ],
)
def test_what_is_no_choice_is_refused(given: tuple, said: str):
    with pytest.raises(UsageError) as caught:
        step_choice(*given)
    assert said in caught.value.message
