"""Folders that hold more than one run: there is no number of both, unless one is plainly meant."""

import json
import shutil
from pathlib import Path

import pytest
from small_runs import FSDP, NVIDIA_A100, PIPELINE, codes, measured, trace, write, write_ranks

from ccl_bench.inspect_run import inspect
from ccl_bench.run import open_run

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}


def refused(folder: Path, name: str = "gpu_busy") -> str:
    """Return why there is no number of a folder of several runs."""
    (found,) = measured(folder, name)
    assert found.status == "not_measurable"
    assert found.fix == "name the folder of one run, or give each run a folder of its own"
    return found.reason


def with_rank(folder: Path, rank: int, **changes) -> Path:
    """Write one more trace, with other content than every other."""
    content = trace(rank, at=50 + rank, world=changes.pop("world", None))
    return write(folder / f"kineto_trace_{rank}.json", content | changes)


def test_two_runs_of_different_size_are_refused_with_the_folder_of_each(tmp_path: Path):
    for rank in range(4):
        write(tmp_path / "large" / f"{rank}.json", trace(rank, world=8, at=rank))
    for rank in (6, 7):
        write(tmp_path / "larger" / f"{rank}.json", trace(rank, world=16, at=rank))

    reason = refused(tmp_path)

    assert reason == "the traces are of several runs: one of 8 ranks (large), one of 16 ranks (larger)"


def test_a_small_run_beside_a_large_one_is_not_dropped_for_its_ranks(tmp_path: Path):
    write_ranks(tmp_path / "small", 2, length=300)
    write_ranks(tmp_path / "large", 4)

    assert refused(tmp_path).endswith("large and small hold the traces of the same 2 ranks")


def test_two_runs_of_one_size_are_refused_with_the_folder_of_each(tmp_path: Path):
    shutil.copytree(FSDP, tmp_path / "sharded")
    shutil.copytree(PIPELINE, tmp_path / "pipelined")

    reason = "the traces are of several runs: pipelined and sharded hold the traces of the same 4 ranks"
    assert refused(tmp_path, "coll_call_num") == reason
    assert refused(tmp_path, "iteration_wall_clock_time") == reason  # though it rests on a side file


def test_two_runs_of_one_rank_each_are_two_runs(tmp_path: Path):
    write(tmp_path / "a" / "trace.json", trace(0, world=1))
    write(tmp_path / "b" / "trace.json", trace(0, world=1, at=1))

    assert "a and b hold the traces of the same rank" in refused(tmp_path)


def test_a_few_damaged_headers_among_sixty_do_not_veto_them(tmp_path: Path):
    write_ranks(tmp_path, 60)
    for rank, world in ((3, 61), (17, 6), (40, 1000)):
        write(tmp_path / f"kineto_trace_{rank}.json", trace(rank, world=world, at=rank))

    (found,) = measured(tmp_path, "gpu_busy")

    assert found.value == pytest.approx(70)
    assert found.ranks == [rank for rank in range(60) if rank not in {3, 17, 40}]
    told = {f.file: f.message for f in found.findings if f.code == "trace-of-other-run"}
    assert told["kineto_trace_17.json"] == (
        "kineto_trace_17.json is left out: it says that the job had 6 ranks, where 57 other traces say 60"
    )
    assert len(told) == 3
    assert open_run(tmp_path).facts.world_size.value == 60


def test_a_small_run_in_a_folder_of_its_own_is_no_damaged_header(tmp_path: Path):
    write_ranks(tmp_path, 30)
    write_ranks(tmp_path / "warm up", 2, length=300)

    assert refused(tmp_path).endswith(". and warm up hold the traces of the same 2 ranks")


def test_windows_of_one_run_are_one_run(tmp_path: Path):
    for window in (10, 20):
        write_ranks(tmp_path / "profile_trace" / f"iteration_{window}", 4, length=window * 10)

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.status, codes(found)) == ("ok", [])


def test_ranks_spread_over_hosts_are_one_run(tmp_path: Path):
    for rank in range(8):
        write(tmp_path / f"host{rank // 4}" / f"rank{rank}.json", trace(rank, world=8, at=rank))

    (found,) = measured(tmp_path, "gpu_busy")

    assert found.ranks == list(range(8))


def test_a_stray_second_trace_of_one_rank_leaves_the_run_alone(tmp_path: Path):
    write_ranks(tmp_path, 4)
    write(tmp_path / "old" / "kineto_trace_0.json", trace(0, world=4, length=500))

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.status, codes(found)) == ("ok", ["rank-duplicate"])


def test_devices_that_differ_are_two_runs_where_nothing_ties_them_together(tmp_path: Path):
    with_rank(tmp_path / "a", 0, deviceProperties=[NVIDIA_A100])
    with_rank(tmp_path / "b", 1, deviceProperties=[H100])

    assert refused(tmp_path).endswith("one on NVIDIA A100-SXM4-80GB (a), one on NVIDIA H100 80GB HBM3 (b)")


def test_ranks_that_know_of_each_other_may_run_on_different_devices(tmp_path: Path):
    with_rank(tmp_path, 0, world=2, deviceProperties=[NVIDIA_A100])
    with_rank(tmp_path, 1, world=2, deviceProperties=[H100])

    (found,) = measured(tmp_path, "mfu")

    assert "several-runs" not in codes(found)
    assert "devices-differ" in codes(found)


def test_inspect_shows_the_folder_and_says_what_it_is(tmp_path: Path):
    write_ranks(tmp_path / "small", 2, length=300)
    write_ranks(tmp_path / "large", 4)

    found = inspect(open_run(tmp_path), use_cache=False)

    assert "several-runs" in {issue.code for issue in found.errors}
    assert all(metric.status != "ok" for metric in found.metrics)


def test_what_a_sole_file_says_is_believed(tmp_path: Path):
    path = with_rank(write_ranks(tmp_path, 2), 1, world=7)

    (found,) = measured(path, "gpu_busy")

    assert found.value == pytest.approx(70)
    assert json.loads(path.read_text())["distributedInfo"]["world_size"] == 7
