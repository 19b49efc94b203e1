"""A training loop of two real processes, recorded by the library through the launcher."""

from __future__ import annotations

import gzip
import json
from statistics import fmean

import pytest
from collected import PLAIN, collect, files, own_bounds
from training_loop_facts import ACTIVE, ALL_GATHERS, ALL_REDUCES, LENGTH, OBSERVED, SEEN, TIMED, TOKENS

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run


def _json(path):
    return json.loads(path.read_text())


def _value(run, metric):
    (result,) = evaluate(open_run(run), [metric], jobs=1)
    return result.value


def test_a_recording_leaves_rank_named_traces_side_files_and_links(apart):
    assert apart.ended.returncode == 0, apart.ended.stderr
    assert files(apart.run) == {
        "environment.json",
        "execution_trace/iteration_11/rank0_et.json",
        "execution_trace/iteration_11/rank1_et.json",
        "execution_trace/rank0_et.json",
        "execution_trace/rank1_et.json",
        "kineto_trace_0.json",
        "kineto_trace_1.json",
        "moe_assignments_rank0.json",
        "moe_assignments_rank1.json",
        "profile_trace/iteration_10/rank0_trace.json",
        "profile_trace/iteration_10/rank1_trace.json",
        "profile_trace/rank0_trace.json",
        "profile_trace/rank1_trace.json",
        "report.html",
        "run_metadata.json",
        "step_times_per_rank.json",
        "torch_et_0.json",
        "torch_et_1.json",
        "training_metrics.json",
        "workload_card.yaml",
    }
    assert (apart.run / "kineto_trace_0.json").readlink().as_posix() == SEEN
    assert not (apart.run / "kineto_trace_0.json").readlink().is_absolute()


@pytest.mark.parametrize("rank", [0, 1])
def test_step_times_reach_around_those_of_the_loops_own_clock(apart, rank):
    recorded = _json(apart.run / "step_times_per_rank.json")[str(rank)]
    assert list(map(int, recorded)) == list(TIMED)
    for step in TIMED:
        least, most = own_bounds(apart, step, ranks=(rank,))
        assert least < recorded[str(step)] < most


def test_iteration_time_is_the_mean_over_timed_steps_of_the_slower_rank(apart):
    recorded = _json(apart.run / "step_times_per_rank.json")
    by_hand = fmean(max(recorded["0"][str(step)], recorded["1"][str(step)]) for step in TIMED)
    measured = _value(apart.run, "iteration_wall_clock_time")
    assert measured == pytest.approx(by_hand)
    assert _value(apart.run, "throughput_tokens_sec") == pytest.approx(TOKENS / measured)


@pytest.mark.parametrize("recording", ["apart", "together"])
def test_collectives_are_as_many_as_the_loop_calls(recording, request):
    run = request.getfixturevalue(recording).run
    assert _value(run, "coll_call_num") == ALL_REDUCES + ALL_GATHERS


@pytest.mark.parametrize("recording", ["apart", "together"])
def test_only_the_active_steps_are_in_the_trace_under_their_own_numbers(recording, request):
    run = request.getfixturevalue(recording).run
    (trace,) = (run / "profile_trace/iteration_10").glob("rank0_trace.json*")
    raw = trace.read_bytes()
    events = json.loads(gzip.decompress(raw) if trace.suffix == ".gz" else raw)["traceEvents"]
    steps = [event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")]
    assert sorted(steps) == [f"ProfilerStep#{step}" for step in ACTIVE]


def test_the_execution_trace_is_of_a_step_of_its_own_unless_asked_otherwise(apart, together):
    def calls(recorded, window):
        trace = recorded.run / f"execution_trace/iteration_{window}/rank0_et.json"
        return [node["name"] for node in _json(trace)["nodes"]].count("c10d::allreduce_")

    # One observed step after the 3 that Kineto recorded; together, those 3.
    assert calls(apart, 11) == ALL_REDUCES
    assert calls(together, 10) == 3 * ALL_REDUCES


def test_the_cost_of_recording_is_measured_against_steps_without_a_profiler(apart):
    recording = _json(apart.run / "run_metadata.json")["recording"]
    plain, *recorded = (
        [fmean(of_steps) for of_steps in zip(*(own_bounds(apart, step) for step in steps), strict=True)]
        for steps in (TIMED, ACTIVE, OBSERVED)
    )
    for phase, (least, most) in zip(("active", "observed"), recorded, strict=True):
        assert least / plain[1] < 1 + recording["overhead"][phase] < most / plain[0]
    assert "overhead" in apart.ended.stdout


def test_metadata_holds_what_the_program_said_and_what_was_counted(apart):
    said = _json(apart.run / "run_metadata.json")
    assert (said["world_size"], said["tokens_per_step"]) == (2, TOKENS)
    assert (said["seq_len"], said["global_batch_size"]) == (128, 32)
    assert [process["rank"] for process in said["recording"]["processes"]] == [0, 1]


def test_the_loss_is_the_mean_over_ranks_of_every_step(apart):
    said = _json(apart.run / "training_metrics.json")
    # Rank r reports step + r, so that the mean of two ranks is step + 0.5.
    assert said == {"step": list(range(LENGTH)), "loss": [step + 0.5 for step in range(LENGTH)]}


def test_experts_are_counted_in_observed_steps_only(apart):
    # 12 tokens in one observed step: 0, 1, 2, 0, 1, 2, ...; expert 3 gets none.
    assert _json(apart.run / "moe_assignments_rank1.json") == {"rank": 1, "layers": {"0": [4, 4, 4, 0]}}
    assert "moe_assignments" in {str(kind) for kind in open_run(apart.run).documents.files.values()}


def test_together_both_traces_show_the_same_steps(together):
    assert together.ended.returncode == 0, together.ended.stderr
    trace = together.run / "profile_trace/iteration_10/rank1_trace.json.gz"
    observed = json.loads((together.run / "execution_trace/iteration_10/rank1_et.json").read_text())
    numbers = {
        attribute["value"]
        for node in observed["nodes"]
        for attribute in node.get("attrs", [])
        if attribute["name"] == "rf_id"
    }
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    recorded = {e["args"]["Record function id"] for e in events if "Record function id" in e.get("args", {})}
    assert recorded - {0} <= numbers
    assert (together.run / "kineto_trace_0.json.gz").exists()


def test_memory_that_cannot_be_recorded_is_said_so(together):
    remarks = _json(together.run / "run_metadata.json")["recording"]["remarks"]
    assert remarks == ["memory was not recorded: there is no CUDA device"]


def test_the_card_is_filled_with_what_was_observed(apart):
    card = open_run(apart.run).documents.card
    assert card.hardware.device.device_count == 2
    assert str(card.model.phase) == "training"
    assert (card.data.batch_size, card.data.seq_len, card.model.steps) == (32, 128, LENGTH)
    assert card.executor.communication_library.name == "Gloo"
    assert card.executor.communication_library.env == {"NCCL_DEBUG": "WARN"}
    assert set(card.metric_source.traces) == {"json", "torch_et"}


def test_the_environment_is_kept_without_secrets(failed):
    said = _json(failed.run / "environment.json")
    assert said["variables"]["NCCL_DEBUG"] == "WARN"
    assert "HF_TOKEN" not in said["variables"]
    assert said["software"]["torch"]["version"].startswith("2.")
    assert said["command"][: len(PLAIN)] == [*PLAIN]
    assert open_run(failed.run).documents.card.framework.name == "pytorch"


def test_the_page_says_what_can_be_measured_and_what_to_do_next(apart):
    page = apart.ended.stdout
    assert "iteration_wall_clock_time" in page.split("Measurable:")[1]
    assert f"next: ccl-metrics '{apart.run}' --all" in page


def test_a_run_is_not_recorded_over(apart):
    ended = collect(apart.folder, "--output", apart.run, "--", "true")
    assert ended.returncode == 2
    assert "already holds a run" in ended.stderr
    assert "--force" in ended.stderr


def test_each_rank_has_a_log_and_the_whole_output_too(apart):
    logs = apart.run / "logs"
    assert (logs / "torch.log").exists()
    assert {path.parent.name for path in logs.rglob("stderr.log")} == {"0", "1"}
