"""Runs of several recording windows, and runs that are one file."""

from pathlib import Path

import pytest
from small_runs import FSDP, PIPELINE, TRACE_METRICS, codes, measured, trace, write, write_ranks

from ccl_bench.run import open_run


def two_windows(folder: Path) -> Path:
    """Write two windows that repeat their step numbers: 100 us steps, then 300 us steps with two calls."""
    write_ranks(folder / "iteration_10")
    write_ranks(folder / "iteration_20", length=300, calls=2)
    return folder


def test_steps_of_all_windows_count_though_their_numbers_repeat(tmp_path: Path):
    (found,) = measured(two_windows(tmp_path), "iteration_wall_clock_time")

    assert found.details["per_step_s"] == pytest.approx({"10:1": 100e-6, "20:1": 300e-6})
    assert found.value == pytest.approx(200e-6)


def test_calls_of_all_windows_are_divided_by_the_steps_of_all_windows(tmp_path: Path):
    (found,) = measured(two_windows(tmp_path), "coll_call_num")

    assert found.details["per_step"] == {"10:1": 1, "20:1": 2}
    assert found.value == (1 + 2) / 2
    assert found.details["per_collective"] == {"all_reduce": 1.5}


def test_time_of_all_windows_is_summed_for_each_rank(tmp_path: Path):
    (found,) = measured(two_windows(tmp_path), "gpu_busy")

    assert found.value == pytest.approx(100 * (70 + 70) / (100 + 300))
    assert found.ranks == [0, 1]


def test_provenance_names_the_window_of_each_trace(tmp_path: Path):
    (found,) = measured(two_windows(tmp_path), "gpu_busy")

    assert [(t.file, t.rank, t.iteration) for t in found.provenance.traces] == [
        ("iteration_10/kineto_trace_0.json", 0, 10),
        ("iteration_10/kineto_trace_1.json", 1, 10),
        ("iteration_20/kineto_trace_0.json", 0, 20),
        ("iteration_20/kineto_trace_1.json", 1, 20),
    ]


def test_windows_made_of_real_runs_give_the_steps_of_both(tmp_path: Path):
    for window, run in ((10, FSDP), (20, PIPELINE)):
        (tmp_path / f"iteration_{window}").mkdir()
        for path in run.glob("kineto_trace_[01].json.gz"):
            (tmp_path / f"iteration_{window}" / path.name).symlink_to(path)

    calls, times = measured(tmp_path, "coll_call_num", "iteration_wall_clock_time")

    # rank 0: 16 calls in each of 3 steps of the one, 8 sends and 8 receives in each of 2 steps of the other
    assert calls.details["per_step"] == {"10:2": 16, "10:3": 16, "10:4": 16, "20:2": 16, "20:3": 16}
    assert list(times.details["per_step_s"]) == list(calls.details["per_step"])


def test_a_rank_missing_from_one_window_is_named_with_the_window(tmp_path: Path):
    (two_windows(tmp_path) / "iteration_20" / "kineto_trace_1.json").unlink()

    (found,) = measured(tmp_path, "gpu_busy")

    assert [finding.message for finding in found.findings] == ["in window 20, 1 of 2 ranks have no trace: 1"]


def test_a_copy_of_a_trace_counts_once(tmp_path: Path):
    write_ranks(tmp_path / "iteration_10")
    write(tmp_path / "copy" / "trace_of_rank_0.json", trace(0, at=0))

    (found,) = measured(tmp_path, "coll_call_num")

    assert [t.file for t in found.provenance.traces if t.rank == 0] == ["iteration_10/kineto_trace_0.json"]


def test_a_single_file_is_a_run_of_one_rank_of_many(tmp_path: Path):
    path = write_ranks(tmp_path) / "kineto_trace_1.json"

    found = measured(path, *TRACE_METRICS)

    assert [result.value for result in found] == pytest.approx([1, 25, 70, 30, 24])
    assert [result.ranks for result in found] == [[1]] * len(found)
    assert [codes(result) for result in found] == [["ranks-missing"]] * len(found)


def test_a_single_file_does_not_take_in_its_neighbours(tmp_path: Path):
    write(write_ranks(tmp_path) / "step_times.json", [9.0])

    run = open_run(tmp_path / "kineto_trace_0.json")

    assert len(run.traces) == 1
    assert run.documents.step_times is None


def test_traces_of_no_known_rank_give_numbers_without_ranks(tmp_path: Path):
    write(tmp_path / "a.json", trace(None, world=None))
    write(tmp_path / "b.json", trace(None, world=None, at=1))

    found = measured(tmp_path, *TRACE_METRICS)

    assert [result.value for result in found] == pytest.approx([1, 25, 70, 30, 24])
    assert [result.ranks for result in found] == [[]] * len(found)
    assert [codes(result) for result in found] == [["rank-unknown"]] * len(found)
