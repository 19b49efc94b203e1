"""Which rank is named as late, on tables small enough to follow by hand."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.analysis.communication.stragglers import (
    find_stragglers,
    lag_of,
    late_ranks,
    peers_of,
    persistence,
    rank_with_most_work,
    shortest_waiting,
    waits_by_member,
)
from ccl_bench.analysis.facts import Facts

STEP_NS = 1_000


def found(*rows: tuple[str, int, int]):
    """Return the stragglers of one step of 1,000 ns in which (group, rank, waited ns)."""
    groups, ranks, waited = zip(*rows, strict=True)
    count = len(rows)
    waits = pl.DataFrame(
        {
            "iteration": [None] * count,
            "step": [1] * count,
            "group": groups,
            "dimension": [None] * count,
            "trace": ranks,
            "rank": ranks,
            "collectives": [1] * count,
            "wait_ns": waited,
            "arrived_last": [int(wait == 0) for wait in waited],
            "caused_ns": [0] * count,
            "complete": [True] * count,
        },
        schema_overrides={"iteration": pl.Int64, "dimension": pl.String},
    )
    members = sorted({*ranks})
    size = len(members)
    steps = pl.DataFrame(
        {
            "iteration": [None] * size,
            "step": [1] * size,
            "trace": members,
            "rank": members,
            "start_ns": [0] * size,
            "end_ns": [STEP_NS] * size,
            "length_ns": [STEP_NS] * size,
            "source": ["ProfilerStep"] * size,
        },
        schema_overrides={"iteration": pl.Int64},
    )
    breakdown = pl.DataFrame({"rank": members, "compute_ns": [500] * size, "exposed_memory_ns": [0] * size})
    return find_stragglers(waits, steps, breakdown, Facts())


@pytest.mark.parametrize(("lag_ns", "late"), [(9, []), (10, [0]), (300, [0])])
def test_a_rank_is_late_from_a_lag_of_one_percent_of_the_step(lag_ns: int, late: list[int]):
    stragglers = found(("all", 0, 0), ("all", 1, lag_ns))
    assert (stragglers.lag_ns, stragglers.late) == (lag_ns, late)


def test_lags_of_groups_that_cancel_out_over_the_step_name_no_rank():
    stragglers = found(("a", 0, 0), ("a", 1, 100), ("b", 0, 100), ("b", 1, 0))
    assert stragglers.members["lag_ns"].to_list() == [100.0] * 4
    assert (stragglers.lag_ns, stragglers.late, stragglers.slowest) == (0, [], None)


@pytest.mark.parametrize(("waited_ns", "late"), [(49, [0, 1]), (50, [0])])
def test_a_rank_that_waited_half_of_its_lag_elsewhere_passes_a_delay_on(waited_ns: int, late: list[int]):
    # rank 1 keeps rank 2 waiting for 100 ns, and has itself waited for rank 0
    stragglers = found(("a", 0, 0), ("a", 1, waited_ns), ("b", 1, 0), ("b", 2, 100))
    assert stragglers.late == late


@pytest.mark.parametrize(("waited_ns", "late"), [(49, [0, 1]), (50, [0])])
def test_who_waits_half_as_long_as_the_longest_waiting_is_not_late(waited_ns: int, late: list[int]):
    assert found(("all", 0, 0), ("all", 1, waited_ns), ("all", 2, 100)).late == late


@pytest.mark.parametrize(("waited_ns", "share"), [(49, 1.0), (50, 0.0)])
def test_a_step_in_which_the_others_waited_twice_as_long_is_no_late_one(waited_ns: int, share: float):
    stragglers = found(("all", 0, waited_ns), ("all", 1, 100))
    assert persistence(stragglers.waits, 0, floor_ns=10) == share


@pytest.mark.parametrize(("more_ns", "rank"), [(49, None), (50, 0)])
def test_more_work_explains_a_lag_from_half_of_it_on(more_ns: int, rank: int | None):
    members = found(("all", 0, 0), ("all", 1, 100)).members
    work = {"rank": [0, 1], "compute_ns": [500, 500], "exposed_memory_ns": [more_ns, 0]}
    assert rank_with_most_work(pl.DataFrame(work), members, [0], [0]) == rank


def test_the_lag_of_ranks_is_the_largest_of_the_groups_in_which_one_of_them_is_late():
    # Rank 0 is late in a by 100 ns and in b by 300 ns, rank 3 in c by 200 ns.
    members = found(
        ("a", 0, 0), ("a", 1, 100), ("b", 0, 0), ("b", 2, 300), ("c", 3, 0), ("c", 4, 200)
    ).members  # fmt: skip
    assert [lag_of(members, ranks) for ranks in ([0], [3], [0, 3], [1], [])] == [300, 200, 300, 0, 0]


def test_members_of_a_group_are_late_or_victims_where_its_lag_matters():
    waits = found(
        ("a", 0, 0), ("a", 1, 49), ("a", 2, 50), ("a", 3, 100), ("b", 0, 2), ("b", 1, 6), ("c", 0, 7),
        ("c", 1, 7),
    ).waits  # fmt: skip
    columns = ("group", "rank", "wait_ns", "least_ns", "lag_ns", "least_alone", "is_late", "is_victim")
    members = waits_by_member(waits, floor_ns=5).sort("group", "rank").select(columns)
    assert members.rows() == [
        ("a", 0, 0, 0, 100, True, True, False),
        ("a", 1, 49, 0, 100, False, True, False),
        ("a", 2, 50, 0, 100, False, False, True),
        ("a", 3, 100, 0, 100, False, False, True),
        ("b", 0, 2, 2, 4, True, False, False),  # its lag of 4 ns is less than 5
        ("b", 1, 6, 2, 4, False, False, False),
        ("c", 0, 7, 7, 0, False, False, False),
        ("c", 1, 7, 7, 0, False, False, False),
    ]
    at_floor = waits_by_member(waits, floor_ns=4).filter(pl.col("group") == "b").sort("rank")
    assert at_floor.select("is_late", "is_victim").rows() == [(True, False), (False, True)]


def _members(*rows: tuple[str, int | None, float, float, float, bool, bool]) -> pl.DataFrame:
    names = ["group", "rank", "wait_ns", "least_ns", "lag_ns", "is_late", "is_victim"]
    return pl.DataFrame([*rows], schema=names, orient="row")


MEMBERS = _members(
    ("a", 1, 0.0, 0.0, 90.0, True, False),
    ("a", 2, 5.0, 0.0, 90.0, True, False),
    ("a", 3, 90.0, 0.0, 90.0, False, True),
    ("b", 1, 7.0, 2.0, 100.0, True, False),
    ("b", 4, 102.0, 2.0, 100.0, False, True),
    ("c", 1, 47.0, 47.0, 23.0, False, True),
    ("c", 6, 70.0, 47.0, 23.0, False, True),
    ("d", 2, 44.0, 3.0, 60.0, False, True),
    ("d", 2, 45.0, 3.0, 60.0, False, True),
    ("d", 5, 3.0, 3.0, 60.0, True, False),
    ("d", 7, 63.0, 3.0, 60.0, False, True),
    ("e", 5, 29.0, 9.0, 50.0, False, True),
    ("e", None, 9.0, 9.0, 50.0, True, False),
)


def test_late_are_those_who_did_not_wait_half_as_long_elsewhere() -> None:
    # 1 waited 47 of 100 and 5 waited 29 of 60; 2 waited 45 of 90, which is half
    assert late_ranks(MEMBERS) == [1, 5]
    assert late_ranks(MEMBERS.filter(~pl.col("rank").is_in([1, 5]))) == [2]
    assert late_ranks(MEMBERS.filter(pl.col("group") == "a")) == [1, 2]
    little = _members(("a", 8, 0.0, 0.0, 2.0, True, False), ("b", 9, 0.0, 0.0, 90.0, True, False))
    assert late_ranks(little) == [8, 9]


def test_peers_share_a_group_in_which_a_rank_is_late_and_are_not_late_themselves() -> None:
    assert peers_of(MEMBERS, 1, [1, 2]) == [3, 4]
    assert peers_of(MEMBERS, 1, [1]) == [2, 3, 4]
    assert peers_of(MEMBERS, 6, [1]) == []


def test_of_the_late_those_count_that_no_member_waits_less_than() -> None:
    assert shortest_waiting(MEMBERS, [1, 2]) == [1]
    assert shortest_waiting(MEMBERS, [5, 2, 1]) == [1, 5]
    assert shortest_waiting(MEMBERS, [2, 6]) == []
