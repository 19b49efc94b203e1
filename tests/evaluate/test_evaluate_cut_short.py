"""Runs of which every trace ends early: numbers of steps use complete steps only."""

import shutil
from pathlib import Path

import pytest
from commands import recorded_by
from small_runs import codes, cut_short, measured, trace, write

from ccl_bench.base.text import counted
from ccl_bench.testing import Plan, damage, write_run

OF_CONTENTS = ("coll_call_num", "gpu_busy", "comm_comp_overlap", "collective_volume_allgather")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two ranks of five equal steps; a generated trace is in order of time."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    write_run(Plan(dp_shard=2, steps=5), folder)
    return folder


def cut(run: Path, folder: Path, share: float) -> Path:
    """Return a copy of a run of which every trace has only its first part."""
    copy = Path(shutil.copytree(run, folder / f"cut to {share}"))
    for path in copy.glob("rank*"):
        damage.truncate(path, share)
    return copy


@pytest.fixture(scope="module")
def expected(whole: Path) -> dict[str, float]:
    """Return the numbers of the whole run."""
    return {r.metric: r.value for r in measured(whole, *OF_CONTENTS)}


@pytest.mark.parametrize("share", [0.95, 0.5, 0.3])
def test_whole_steps_give_the_numbers_of_the_whole_run(
    whole: Path, expected: dict[str, float], tmp_path: Path, share: float
):
    found = measured(cut(whole, tmp_path, share), *OF_CONTENTS)

    assert {r.metric: r.value for r in found} == pytest.approx(expected)  # all five steps are alike
    assert all({"file-truncated", "steps-cut-short"} <= {*codes(r)} for r in found)


def test_the_finding_counts_the_steps_that_are_left(whole: Path, tmp_path: Path):
    (found,) = measured(cut(whole, tmp_path, 0.5), "coll_call_num")

    steps = len(found.details["per_step"])
    assert 1 <= steps < 5
    (reported,) = [f.message for f in found.findings if f.code == "steps-cut-short"]
    assert reported.endswith(f"numbers use only the {counted(2 * steps, 'complete step')}")


def test_without_a_whole_step_there_is_no_number_of_what_steps_hold(whole: Path, tmp_path: Path):
    found = measured(cut(whole, tmp_path, 0.1), *OF_CONTENTS)

    assert {r.status for r in found} == {"not_measurable"}
    assert {r.reason for r in found} == {"every trace is truncated, and no step is known to be complete"}
    assert all(
        r.fix.endswith("record it again, and let the job write its traces before it ends") for r in found
    )


def test_threads_of_a_cpu_that_are_missing_leave_no_step_whole(tmp_path: Path):
    """The profiler writes thread after thread: the last of this run is one that carries collectives out."""
    run = recorded_by((0, 1), tmp_path / "run")
    for path in run.glob("kineto_trace_*.json.gz"):
        cut_short(path, 0.98)

    calls, busy, times = measured(run, "coll_call_num", "gpu_busy", "iteration_wall_clock_time")

    assert (calls.status, busy.status, times.status) == ("not_measurable", "not_measurable", "ok")
    assert "no-whole-step" in codes(calls)


def test_a_file_that_ends_before_the_device_begins_does_not_pass_off_the_cpu_as_one(tmp_path: Path):
    for rank in range(2):
        events = trace(rank, at=rank, steps=(1, 2))
        first = [e for e in events["traceEvents"] if e["cat"] != "kernel"]
        events["traceEvents"] = first + [e for e in events["traceEvents"] if e["cat"] == "kernel"]
        path = write(tmp_path / f"kineto_trace_{rank}.json", events)
        path.write_text(path.read_text().partition('"gemm"')[0])

    (found,) = measured(tmp_path, "gpu_busy")

    assert found.reason == "every trace is truncated, and no step is known to be complete"


def test_one_whole_rank_is_enough_to_leave_the_others_out(whole: Path, tmp_path: Path):
    run = cut(whole, tmp_path, 0.5)
    shutil.copy(whole / "rank1_trace.json", run / "rank1_trace.json")

    (found,) = measured(run, "coll_call_num")

    assert found.details["rank"] == "1"
    assert len(found.details["per_step"]) == 5
    assert codes(found).count("trace-left-out") == 1
