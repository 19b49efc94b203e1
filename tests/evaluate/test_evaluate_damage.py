"""What a damaged or odd trace does to the numbers of the others: nothing, and the result says so."""

import json
from pathlib import Path

import pytest
from commands import recorded_by
from small_runs import (
    PIPELINE,
    TRACE_METRICS,
    codes,
    copied,
    cut_short,
    make_unreadable,
    measured,
    trace,
    write,
    write_ranks,
)

EXPECTED = {
    # see small_runs: 10 of 40, 70 of 100, 30 of 100, (40 x 0.5 + 40 x 0.1) of 100
    "coll_call_num": 1,
    "comm_comp_overlap": 25,
    "gpu_busy": 70,
    "gpu_idle": 30,
    "sm": 24,
}


def test_the_numbers_of_the_small_run_are_those_recognised_by_heart(tmp_path: Path):
    found = measured(write_ranks(tmp_path, steps=(1, 2, 3)), *TRACE_METRICS)

    assert {result.metric: result.value for result in found} == pytest.approx(EXPECTED)
    assert [codes(result) for result in found] == [[]] * len(found)


def test_an_unreadable_rank_leaves_the_numbers_of_the_others_alone(tmp_path: Path):
    make_unreadable(write_ranks(tmp_path) / "kineto_trace_0.json")

    found = measured(tmp_path, *TRACE_METRICS)

    assert {result.metric: result.value for result in found} == pytest.approx(EXPECTED)
    assert [result.ranks for result in found] == [[1]] * len(found)
    assert [codes(result) for result in found] == [["trace-unreadable"]] * len(found)
    assert found[0].findings[0].file == "kineto_trace_0.json"
    assert found[0].findings[0].rank == 0


def test_a_rank_cut_short_is_left_out_of_what_its_steps_hold(tmp_path: Path):
    run = recorded_by((0, 1), tmp_path / "run")
    whole = {r.metric: r for r in measured(run, "coll_call_num", "gpu_busy")}
    cut_short(run / "kineto_trace_0.json.gz")

    found = {r.metric: r for r in measured(run, "coll_call_num", "gpu_busy")}

    assert found["coll_call_num"].details["rank"] == "1"
    assert found["coll_call_num"].value == whole["coll_call_num"].details["per_rank"]["1"]
    others = {rank: share for rank, share in whole["gpu_busy"].details["per_rank_pct"].items() if rank != "0"}
    assert found["gpu_busy"].details["per_rank_pct"] == pytest.approx(others)
    assert {"file-truncated", "trace-left-out"} <= {*codes(found["gpu_busy"])}


def test_step_times_do_not_lose_a_rank_that_is_cut_short_after_its_steps(tmp_path: Path):
    write_ranks(tmp_path)
    path = tmp_path / "kineto_trace_1.json"
    events = trace(1, at=1, length=300)["traceEvents"]
    text = json.dumps(
        {"schemaVersion": 1, "distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": events}
    )
    path.write_text(text[:-20])

    times, busy = measured(tmp_path, "iteration_wall_clock_time", "gpu_busy")

    assert times.value == pytest.approx(300e-6)
    assert times.ranks == [0, 1]
    assert "trace-left-out" not in codes(times)
    assert busy.ranks == [0]
    assert "trace-left-out" in codes(busy)


def test_a_rank_without_step_marks_beside_others_with_them_is_left_out(tmp_path: Path):
    write_ranks(tmp_path)
    unmarked = trace(1, at=1)
    unmarked["traceEvents"] = [e for e in unmarked["traceEvents"] if e["cat"] != "user_annotation"]
    write(tmp_path / "kineto_trace_1.json", unmarked)

    found = measured(tmp_path, "iteration_wall_clock_time", *TRACE_METRICS)

    assert {r.metric: r.value for r in found} == pytest.approx(
        EXPECTED | {"iteration_wall_clock_time": 100e-6}
    )
    assert [r.window for r in found] == ["ProfilerStep"] * len(found)
    assert [codes(r) for r in found] == [["steps-unmarked"]] * len(found)


def test_a_run_without_any_step_marks_is_one_window_and_says_so(tmp_path: Path):
    for rank in range(2):
        unmarked = trace(rank, at=rank)
        unmarked["traceEvents"] = [e for e in unmarked["traceEvents"] if e["cat"] != "user_annotation"]
        write(tmp_path / f"kineto_trace_{rank}.json", unmarked)

    (found,) = measured(tmp_path, "iteration_wall_clock_time")

    assert found.value == pytest.approx(76e-6)  # from the operator at 4 to the end of the all-reduce at 80
    assert found.window == "whole trace"


def test_a_rank_without_kernels_does_not_pass_off_its_cpu_as_a_device(tmp_path: Path):
    write_ranks(tmp_path)
    write(tmp_path / "kineto_trace_1.json", trace(1, at=1, on_device=False))

    found = measured(tmp_path, *TRACE_METRICS)

    assert {result.metric: result.value for result in found} == pytest.approx(EXPECTED)
    assert [codes(result) for result in found] == [["no-device-work"]] * len(found)


def test_a_rank_without_named_ranges_beside_ranks_that_have_some_is_reported(tmp_path: Path):
    unmarked = [trace(rank, at=rank) for rank in range(2)]
    for each in unmarked:
        each["traceEvents"] = [e for e in each["traceEvents"] if e["cat"] != "user_annotation"]
    named = {"ph": "X", "cat": "user_annotation", "name": "loading", "pid": 1, "tid": 1, "ts": 4, "dur": 1}
    unmarked[0]["traceEvents"].append(named)
    for rank, each in enumerate(unmarked):
        write(tmp_path / f"kineto_trace_{rank}.json", each)

    (found,) = measured(tmp_path, "gpu_busy")
    assert "ranges-missing" in codes(found)
    (finding,) = [each for each in found.findings if each.code == "ranges-missing"]
    assert "kineto_trace_1.json" in finding.message

    unmarked[1]["traceEvents"].append(named)
    write(tmp_path / "kineto_trace_1.json", unmarked[1])
    (found,) = measured(tmp_path, "gpu_busy")
    assert "ranges-missing" not in codes(found)


def test_launches_and_kernels_without_a_link_do_not_stretch_the_steps(tmp_path: Path):
    for rank in range(2):
        unlinked = trace(rank, at=rank, steps=(1, 2))
        for event in unlinked["traceEvents"]:
            if "correlation" in event.get("args", {}):
                event["args"]["correlation"] = 0
        write(tmp_path / f"kineto_trace_{rank}.json", unlinked)

    found = measured(tmp_path, *TRACE_METRICS)

    assert {result.metric: result.value for result in found} == pytest.approx(EXPECTED)


def test_work_that_runs_on_after_its_step_belongs_to_the_step_that_launched_it(tmp_path: Path):
    # the all-reduce launched in step 1 (0 to 100) runs until 250, so step 2 (200 to 300) starts at 250
    for rank in range(2):
        late = trace(rank, at=rank, steps=(1, 2))
        first = next(e for e in late["traceEvents"] if e["name"].startswith("nccl"))
        first["dur"] = 210
        for event in late["traceEvents"]:
            if event["cat"] == "kernel" and event["ts"] > 200:
                event["ts"] += 50
        write(tmp_path / f"kineto_trace_{rank}.json", late)

    busy, calls = measured(tmp_path, "gpu_busy", "coll_call_num")

    # step 1: 10 to 250 of 0 to 250; step 2: 260 to 330, and the window goes on to 330
    assert busy.value == pytest.approx(100 * (240 + 70) / (250 + 80))
    assert calls.details["per_step"] == {"1": 1, "2": 1}


def test_no_readable_trace_is_the_reason_and_not_what_follows_from_it(tmp_path: Path):
    write_ranks(tmp_path)
    for rank in range(2):
        make_unreadable(tmp_path / f"kineto_trace_{rank}.json", rank)

    found = measured(tmp_path, "iteration_wall_clock_time", *TRACE_METRICS)

    assert [result.status for result in found] == ["not_measurable"] * len(found)
    assert {result.reason for result in found} == {"no trace of the run could be read"}
    assert "kineto_trace_0.json: no array of trace events" in found[0].fix


def test_unreadable_traces_do_not_touch_numbers_that_need_none(tmp_path: Path):
    make_unreadable(tmp_path / "kineto_trace_0.json")
    write(tmp_path / "step_times.json", [0.5])
    write(tmp_path / "run_metadata.json", {"tokens_per_step": 100, "world_size": 2})
    write(tmp_path / "training_metrics.json", {"loss": [3.0, 2.0]})

    broken, *found = measured(
        tmp_path, "gpu_busy", "iteration_wall_clock_time", "throughput_tokens_sec", "training_quality"
    )

    assert broken.status == "not_measurable"
    assert [result.value for result in found] == [0.5, 200, 2.0]
    assert [codes(result) for result in found] == [[], [], []]


def test_mfu_of_unreadable_traces_rests_on_what_was_stated(tmp_path: Path):
    make_unreadable(tmp_path / "kineto_trace_0.json")
    write(tmp_path / "step_times.json", [1.0])
    stated = {"tokens_per_step": 1000, "model_flops_per_token": 1e11, "gpu_peak_tflops": 500, "world_size": 2}
    write(tmp_path / "run_metadata.json", stated)

    (found,) = measured(tmp_path, "mfu")

    assert found.value == pytest.approx(100 * 1e14 / 1e15)  # 1,000 x 1e11 of 2 x 500e12
    assert codes(found) == ["ranks-missing", "trace-unreadable"]


def test_a_finding_about_a_table_stays_with_the_numbers_that_use_the_table(tmp_path: Path):
    write_ranks(tmp_path)
    odd = trace(1, at=1)
    odd["traceEvents"].append(
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD",
            "pid": 0,
            "tid": 7,
            "ts": 20,
            "dur": 1e15,
            "args": {},
        }
    )
    write(tmp_path / "kineto_trace_1.json", odd)
    write(tmp_path / "training_metrics.json", {"loss": [2.0]})
    write(tmp_path / "step_times.json", [0.5])

    found = measured(tmp_path, "gpu_busy", "mfu", "iteration_wall_clock_time", "training_quality")

    assert [codes(result) for result in found] == [["impossible-time"], [], [], []]


def test_an_unreadable_side_file_stays_with_the_numbers_it_would_have_given(tmp_path: Path):
    (write_ranks(tmp_path) / "training_metrics.json").write_text("{")

    quality, calls, times = measured(
        tmp_path, "training_quality", "coll_call_num", "iteration_wall_clock_time"
    )

    assert (quality.status, codes(quality)) == ("not_measurable", ["file-malformed"])
    assert (codes(calls), codes(times)) == ([], [])


def test_missing_ranks_are_named_with_the_numbers(tmp_path: Path):
    run = copied(PIPELINE, tmp_path)
    (run / "kineto_trace_0.json.gz").unlink()
    (run / "kineto_trace_2.json.gz").unlink()

    calls, quality = measured(run, "coll_call_num", "training_quality")

    assert calls.ranks == [1, 3]
    assert calls.details["rank"] == "1"
    assert [f.message for f in calls.findings] == ["2 of 4 ranks have no trace: 0, 2"]
    assert codes(quality) == []


def test_a_directory_without_traces_holds_no_steps(tmp_path: Path):
    write(tmp_path / "run_metadata.json", {"world_size": 2})

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.status, found.reason) == ("not_measurable", "the run holds no steps")


def test_a_trace_without_events_is_no_zero(tmp_path: Path):
    for rank in range(2):
        write(tmp_path / f"kineto_trace_{rank}.json", trace(rank, steps=()))

    found = measured(tmp_path, "iteration_wall_clock_time", *TRACE_METRICS)

    assert {(result.status, result.value) for result in found} == {("not_measurable", None)}
