"""The lag of ranks in Flight Recorder dumps, on arrivals that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.shared.recorded_calls import recorded_lag
from ccl_bench.metrics.straggler import straggler_of_recorded_calls

SHIFTS = (-7_000_000, 3_000, 0)
"""ns by which the clock of each rank was set back."""


def arrivals(
    waits: dict[int, list[tuple[int, int]]], *, error_ns: int | None = 40_000, shifts: Any = SHIFTS
) -> pl.DataFrame:
    """Return calls of ranks, which wait from a time to another, ns; a rank is late by 100 and its number."""
    rows = [
        {"rank": rank, "number": 1, "sequence": place, "start_ns": start, "end_ns": end}
        | {"lateness_ns": 100 + rank, "clock_error_ns": error_ns, "clock_shift_ns": shifts[rank]}
        for rank, each in waits.items()
        for place, (start, end) in enumerate(each)
    ]
    return pl.DataFrame(rows, schema_overrides={"clock_error_ns": pl.Int64})


# rank 0 waits 300 ns in two calls at once, and 100; rank 1 never; rank 2 for 50; from 1,000 to 6,000 ns
WAITS = {
    0: [(1000, 1200), (1100, 1300), (5900, 6000)],
    1: [(1300, 1300), (2000, 2000)],
    2: [(1250, 1300), (5950, 5950)],
}


def test_a_rank_that_never_waits_is_late_by_what_the_longest_waiting_waits() -> None:
    found = straggler_of_recorded_calls(arrivals(WAITS), Facts())
    assert found.value == pytest.approx(400 / 5000)
    details = found.details
    assert details["wait_s"] == pytest.approx({"0": 400e-9, "1": 0, "2": 50e-9})
    assert (details["slowest_rank"], details["late_ranks"], details["calls_count"]) == ("1", ["1"], 3)
    assert details["straggler_lag_s"] == pytest.approx(400e-9)
    assert details["recorded_s"] == pytest.approx(5e-6)
    assert details["mean_lateness_s"] == pytest.approx({"0": 100e-9, "1": 101e-9, "2": 102e-9})
    assert details["clock_error_s"] == pytest.approx(40e-6)
    assert (details["noise_floor_ratio"], found.ranks) == (0.01, [0, 1, 2])


@pytest.mark.parametrize(("lag_ns", "late"), [(99_000_000, []), (100_000_000, ["1"]), (101_000_000, ["1"])])
def test_a_rank_is_late_from_a_hundredth_of_the_recorded_time(lag_ns: int, late: list[str]) -> None:
    # of 10 s
    waits = {0: [(0, lag_ns), (5, 6)], 1: [(7, 7), (10**10, 10**10)]}
    found = straggler_of_recorded_calls(arrivals(waits), Facts())
    assert found.details["late_ranks"] == late
    assert found.details["slowest_rank"] == (late[0] if late else "none")


def test_the_clock_error_is_left_out_where_nothing_shows_it() -> None:
    found = straggler_of_recorded_calls(arrivals(WAITS, error_ns=None), Facts())
    assert "clock_error_s" not in found.details
    assert "as recorded, which is correct on one host" in found.findings[-1].message


@pytest.mark.parametrize(
    ("ranks", "of_node", "error_ns", "is_measured"),
    [(8, 8, None, True), (9, 8, None, False), (9, 8, 40, True), (9, None, None, True), (None, 1, None, True)],
)
def test_ranks_of_several_hosts_need_calls_that_compare_their_clocks(
    ranks: int | None, of_node: int | None, error_ns: int | None, is_measured: bool
) -> None:
    facts = Facts(
        world_size=Fact(ranks, "card") if ranks else None,
        devices_per_node=Fact(of_node, "card") if of_node else None,
    )
    if is_measured:
        assert recorded_lag(arrivals(WAITS, error_ns=error_ns), facts).calls == 3
        return
    with pytest.raises(NotMeasurable, match="several hosts"):
        recorded_lag(arrivals(WAITS, error_ns=error_ns), facts)


def test_the_largest_correction_of_a_clock_in_either_direction_is_reported() -> None:
    message = recorded_lag(arrivals(WAITS), Facts()).findings[-1].message
    assert "up to 7 ms was corrected" in message
    assert "up to 40 us may remain" in message
    one = recorded_lag(arrivals(WAITS, shifts=(0, 0, 1)), Facts()).findings[-1].message
    assert "up to 1 ns was corrected" in one
    none = recorded_lag(arrivals(WAITS, shifts=(0, 0, 0)), Facts()).findings[-1].message
    assert "at most 40 us apart" in none


@pytest.mark.parametrize(
    ("waits", "is_measured"),
    [
        ({0: [(0, 3), (5, 6)], 1: [(3, 3)]}, True),
        ({0: [(0, 3)], 1: [(3, 3)]}, False),  # one call
        ({0: [(3, 3), (3, 3)], 1: [(3, 3)]}, False),  # of no length together
        ({0: [(3, 3), (3, 4)], 1: [(3, 3)]}, True),
    ],
)
def test_two_calls_at_different_times_are_needed(
    waits: dict[int, list[tuple[int, int]]], is_measured: bool
) -> None:
    if is_measured:
        assert recorded_lag(arrivals(waits), Facts()).calls == 2
        return
    with pytest.raises(NotMeasurable, match="fewer than two calls"):
        recorded_lag(arrivals(waits), Facts())
    with pytest.raises(NotMeasurable, match="no steps"):
        recorded_lag(arrivals(waits).clear(), Facts())
