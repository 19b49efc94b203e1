"""Groups of dumps and who is in them, and which calls are over, by hand."""

from __future__ import annotations

import polars as pl
from flight_recorder import call, dump, tables_of

from ccl_bench.analysis.recorder.calls import prepared
from ccl_bench.analysis.recorder.groups import elements, find_groups


def test_a_group_that_a_rank_does_not_list_is_that_of_another_list_that_has_it() -> None:
    """Ranks 1 and 2 call in their groups of one name; rank 0 lists one of these, and rank 3 the other."""
    calls = [call("all_reduce", 1, group=("1", "tp"))]
    tables = tables_of(
        {0: dump([], {"1": [0, 1]}), 1: dump(calls), 2: dump(calls), 3: dump([], {"1": [2, 3]})}
    )
    found = find_groups(tables["recorded_calls"], tables["recorded_groups"], range(4), None)
    members = {group.number: (group.name, group.members, group.possible) for group in found.groups}
    assert sorted(members.values()) == [("1", (0, 1), ()), ("1", (2, 3), ())]
    of_rank = {rank: members[number][1] for rank, _, number in found.of_rank.iter_rows()}
    assert of_rank == {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def test_of_several_lists_that_have_a_rank_the_first_counts() -> None:
    """Rank 2 calls in `1`, of which others list three, two with it; its own list would count before these."""
    lists = {0: dump([], {"1": [2, 5]}), 1: dump([], {"1": [1, 2]}), 3: dump([], {"1": [0, 1]})}
    calls = [call("all_reduce", 1, group=("1", "tp"))]
    for own, members in ((dump(calls), (1, 2)), (dump(calls, {"1": [2, 7]}), (2, 7))):
        tables = tables_of({**lists, 2: own})
        found = find_groups(tables["recorded_calls"], tables["recorded_groups"], range(4), None)
        of_rank = {rank: found.groups[number].members for rank, _, number in found.of_rank.iter_rows()}
        assert of_rank == {0: (2, 5), 1: (1, 2), 2: members, 3: (0, 1)}


def test_a_group_that_nobody_lists_has_its_users_and_perhaps_ranks_without_another_of_its_kind() -> None:
    """Of six ranks 0 and 2 use `1`, rank 3 another group of the same description, rank 1 one of another."""
    users = {0: ("1", "tp"), 1: ("3", "dp"), 2: ("1", "tp"), 3: ("2", "tp"), 4: ("0", "default_pg")}
    tables = tables_of({rank: dump([call("all_reduce", 1, group=group)]) for rank, group in users.items()})
    found = find_groups(tables["recorded_calls"], tables["recorded_groups"], range(5), 6)
    groups = {group.name: (group.members, group.possible) for group in found.groups}
    assert groups == {
        "0": ((0, 1, 2, 3, 4, 5), ()),
        "1": ((0, 2), (1, 4, 5)),
        "2": ((3,), (1, 4, 5)),
        "3": ((1,), (0, 2, 3, 4, 5)),
    }


def test_what_is_coalesced_is_done_with_the_call_that_ends_it_and_with_no_other() -> None:
    calls = [
        call("all_gather", 1, at_ms=1),
        call("coalesced", 1, at_ms=2, ended_ms=3),
        call("all_gather", 2, at_ms=4, ended_ms=5),
        call("all_gather", 2, at_ms=6),
        call("coalesced", 3, at_ms=7),
        call("all_gather", 3, at_ms=7, state="completed"),
        call("all_gather", 4, at_ms=8, is_retired=True),
        call("send 0->1", 1, at_ms=9),  # its number is counted apart
    ]
    tables = tables_of({0: dump(calls)})
    of_rank = find_groups(tables["recorded_calls"], tables["recorded_groups"], [0], 2).of_rank
    found = prepared(tables["recorded_calls"], of_rank)
    assert found["is_done"].to_list() == [True, True, True, False, False, True, False, False]
    assert found["is_pending"].to_list() == [False, False, False, True, True, False, False, True]


def test_elements_are_the_products_of_sizes_over_all_tensors() -> None:
    assert elements([[2, 3], [5], []]) == 2 * 3 + 5 + 1
    assert elements([]) == 0


def test_all_gathers_of_the_default_group_show_how_many_ranks_there_are() -> None:
    calls = pl.concat(
        tables_of({0: dump([call(name, 1, group=group, shape=(8,))])})["recorded_calls"].with_columns(
            out_shapes=pl.lit([[out]])
        )
        for name, group, out in (
            ("all_gather", ("0", "default_pg"), 24),
            ("_allgather_base", ("0", "default_pg"), 40),
            ("all_gather", ("0", "default_pg"), 60),  # 60 is no multiple of 8
            ("all_gather", ("1", "tp"), 800),
            ("all_reduce", ("0", "default_pg"), 880),
        )
    )
    listed = tables_of({0: dump([])})["recorded_groups"]
    found = find_groups(calls, listed, [0], 3)
    assert found.groups[0].members == (0, 1, 2, 3, 4)
