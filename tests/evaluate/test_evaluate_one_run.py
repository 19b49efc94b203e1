"""Folders that hold more than one run: there is no number of both, unless one is plainly meant."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import FSDP, NVIDIA_A100, PIPELINE, TRACE_METRICS, codes, measured, trace, write, write_ranks

from ccl_bench.evaluate.inspect import inspect
from ccl_bench.run import open_run

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}


def refused(folder: Path, *names: str) -> str:
    """Return why there is none of some numbers of a folder of several runs."""
    results = measured(folder, *(names or ["gpu_busy"]))
    assert {found.status for found in results} == {"not_measurable"}
    (fix,) = {found.fix for found in results}
    assert fix.startswith("name the folder of one run, or give each run its own folder")
    assert fix.endswith("state the ranks in ranks.json")
    (reason,) = {found.reason for found in results}
    return reason


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
    # the second rests on a side file
    assert refused(tmp_path, "coll_call_num", "iteration_wall_clock_time") == reason


def test_two_runs_of_one_rank_each_are_two_runs(tmp_path: Path):
    write(tmp_path / "a" / "trace.json", trace(0, world=1))
    write(tmp_path / "b" / "trace.json", trace(0, world=1, at=1))

    assert "a and b hold the traces of the same rank" in refused(tmp_path)


def test_a_few_damaged_headers_among_many_do_not_veto_them(tmp_path: Path):
    write_ranks(tmp_path, 16)
    for rank, world in ((3, 17), (11, 6)):
        write(tmp_path / f"kineto_trace_{rank}.json", trace(rank, world=world, at=rank))

    (found,) = measured(tmp_path, "gpu_busy")

    assert found.value == pytest.approx(70)
    assert found.ranks == [rank for rank in range(16) if rank not in {3, 11}]
    reported = {f.file: f.message for f in found.findings if f.code == "trace-of-other-run"}
    assert reported["kineto_trace_11.json"] == (
        "kineto_trace_11.json is left out: it states that the job had 6 ranks, but 14 other traces state 16"
    )
    assert len(reported) == 2
    assert open_run(tmp_path).facts.world_size.value == 16


def test_a_small_run_in_a_folder_of_its_own_is_no_damaged_header(tmp_path: Path):
    write_ranks(tmp_path, 16)
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

    for found in measured(tmp_path, *TRACE_METRICS):
        assert found.status == "ok"
        assert "devices-differ" in codes(found)


def test_ranks_with_different_versions_of_nccl_are_of_several_runs(tmp_path: Path):
    for rank, version in enumerate(("2.21.5", "2.19.3")):
        path = with_rank(tmp_path, rank, world=2)
        content = json.loads(path.read_text())
        content["distributedInfo"]["nccl_version"] = version
        write(path, content)

    assert refused(tmp_path).endswith(
        "one with NCCL 2.21.5 (kineto_trace_0.json), one with NCCL 2.19.3 (kineto_trace_1.json)"
    )


def test_two_runs_of_which_each_gives_some_ranks_are_refused_by_their_times(corpus: Path, tmp_path: Path):
    for rank in range(2):
        name = f"worker{rank}_step_12.pt.trace.json.gz"
        shutil.copy(corpus / "kineto" / "dlrm-8rank" / name, tmp_path / f"rank{rank}.json.gz")
        name = f"megatron_kineto_{rank + 4}.json.gz"
        shutil.copy(corpus / "kineto" / "megatron-tp8" / name, tmp_path / f"rank{rank + 4}.json.gz")

    # 8 ranks each, on V100 in September 2023 and on A100 in February 2024
    reason = refused(tmp_path)

    assert "one recorded from 2023-09-07 " in reason
    assert "one recorded from 2024-02-02 " in reason


def epoch(rank: int, at_s: float, **known: object) -> dict[str, Any]:
    """Return the trace of a rank of two whose step of 100 us began so many seconds after a moment in 2026."""
    return trace(rank, world=2) | {"baseTimeNanoseconds": 1_795_326_608 * 10**9 + int(at_s * 1e9)} | known


def test_ranks_recorded_after_each_other_are_several_runs_where_no_clock_can_be_that_wrong(tmp_path: Path):
    one_host, far, near = tmp_path / "one host", tmp_path / "far", tmp_path / "near"
    for folder, pause, known in ((one_host, 3, {"host_name": "vm"}), (far, 61, {}), (near, 3, {})):
        write(folder / "rank0.json", epoch(0, 0, **known))
        write(folder / "rank1.json", epoch(1, pause, **known))

    assert "one recorded from" in refused(one_host)
    assert "one recorded from" in refused(far)
    (found,) = measured(near, "gpu_busy")
    assert (found.status, codes(found)) == ("ok", ["recordings-apart"])


def test_times_that_count_from_the_start_of_a_machine_prove_nothing(tmp_path: Path):
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", trace(rank, at=rank * 10**9))

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.status, codes(found)) == ("ok", [])


def test_two_runs_in_one_folder_with_names_of_their_own_are_two_runs(tmp_path: Path):
    for rank in (0, 1):
        write(tmp_path / f"a{rank}.json", trace(rank))
        write(tmp_path / f"b{rank}.json", trace(rank, length=300))

    assert refused(tmp_path).endswith("2 of 2 ranks have two traces each of one recording window")


def test_a_run_beside_itself_packed_is_one_run(tmp_path: Path):
    for path in write_ranks(tmp_path).glob("*.json"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.status, found.value) == ("ok", pytest.approx(70))


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
