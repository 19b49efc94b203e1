"""Waiting and transfer, distinguished without any clock, and who is late."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import cross_plain
import polars as pl
import pytest
from cross_runs import call, documents, group, matched, rewrite, tables_and_results
from recorded_runs import results_of, tables_of

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.testing import Plan, Straggler, damage, trace_path, write_run

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
    found = results_of(megatron)["straggler"].details["wait_s_per_step"]
    assert found == pytest.approx({str(rank): wait / SECOND_US for rank, wait in waits.items()})


def test_ranks_0_and_6_of_the_tensor_parallel_run_are_late(megatron: Path):
    # NCCL time is 241 ms on rank 0 and 264 ms on rank 6, 413 to 495 ms on the others
    totals = {rank: sum(row) / 1000 for rank, row in durations(megatron).items()}
    assert (round(totals[0]), round(totals[6])) == (241, 264)
    assert all(413 <= round(totals[rank]) <= 495 for rank in (1, 2, 3, 4, 5, 7))
    caused = cross_plain.caused(durations(megatron))
    details = results_of(megatron)["straggler"].details
    assert details["late_ranks"] == ["0", "6"]
    assert details["slowest_rank"] == str(max(caused, key=lambda rank: caused[rank])) == "0"
    reported = {rank: value for rank, value in details["caused_wait_s_per_step"].items() if value}
    assert reported == pytest.approx({str(rank): value / SECOND_US for rank, value in caused.items()})


def test_lag_of_the_tensor_parallel_run_is_that_of_a_plain_count(megatron: Path):
    waits = cross_plain.waits(durations(megatron)).values()
    lag = (max(waits) - min(waits)) / SECOND_US
    assert results_of(megatron)["straggler_lag_16"].value == pytest.approx(lag)
    # 633.5 ms is the slowest rank's one step
    assert results_of(megatron)["straggler"].value == pytest.approx(lag / 0.6335, rel=1e-3)


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
    before = tables_of(megatron)
    after, measured = tables_and_results(shifted, ("matched", "waits", "clock_offsets"), ("straggler",))
    reported = ["group", "number", "rank", "transfer_ns", "wait_ns"]
    assert (
        after["matched"]
        .sort("rank", "number")
        .select(reported)
        .equals(before["matched"].sort("rank", "number").select(reported))
    )
    assert after["waits"].drop("trace").equals(before["waits"].drop("trace"))
    names = ("slowest_rank", "late_ranks", "wait_s_per_step", "caused_wait_s_per_step", "cause")
    was, now = results_of(megatron)["straggler"], measured["straggler"]
    assert (was.value, [was.details[name] for name in names]) == (
        now.value,
        [now.details[name] for name in names],
    )
    offsets = dict(after["clock_offsets"].select("rank", "offset_ns").iter_rows())
    ahead = [offsets[rank] - offsets[0] for rank in range(8)]
    assert all(abs(ahead[rank] - (3_000_000 if rank >= 4 else 0)) <= 50_000 for rank in range(8))
    assert after["clock_offsets"]["residual_ns"].max() <= 50_000


SLOW = Plan(dp_shard=2, tp=2, layers=3, stragglers=(Straggler(3, layer_ns=80_000),), jitter_ns=500)


def test_generated_waits_are_those_of_the_plan_and_clocks_3_ms_ahead_are_recovered(tmp_path: Path):
    expected = write_run(SLOW, tmp_path)
    for rank in (2, 3):
        damage.shift_clock(trace_path(tmp_path, rank), 3_000_000)
    found, measured = tables_and_results(tmp_path, ("waits", "clock_offsets"), ("straggler",))
    sums = found["waits"].group_by("rank", "step").agg(pl.col("wait_ns").sum())
    assert sums.height == 4 * SLOW.steps
    assert all(wait == expected.wait_ns(rank, step) for rank, step, wait in sums.iter_rows())
    assert measured["straggler"].details["slowest_rank"] == "3"
    offsets = dict(found["clock_offsets"].select("rank", "offset_ns").iter_rows())
    assert [offsets[rank] - offsets[0] for rank in range(4)] == [0, 0, 3_000_000, 3_000_000]


TWO = group("g", 0, 1)


def test_wait_is_what_exceeds_the_shortest_duration_whatever_the_clocks_say():
    # rank 1 runs 6 of the 10 ns that rank 0 runs; its clock is an hour ahead
    hour = 3_600 * 10**9
    found = matched([call(0, 1, 0, 10), call(1, 1, hour + 4, hour + 10)], TWO)
    assert found.select("rank", "transfer_ns", "wait_ns").rows() == [(0, 6, 4), (1, 6, 0)]
    waits = DERIVED.get("waits").compute(found)
    assert waits.select("rank", "wait_ns", "arrived_last", "caused_ns", "complete").rows() == [
        (0, 4, 0, 0, True),
        (1, 0, 1, 4, True),
    ]


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
