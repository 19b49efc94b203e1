"""Who is missing where: dumps of programs whose hang is known."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from flight_recorder import call, dump, tables_of
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.recorder.hang import find_hang
from ccl_bench.report.hang import verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.result.hang import Hang

TP = ("1", "tp")


def hang(dumps: Mapping[int, dict[str, object]], world_size: int | None = None) -> Hang:
    return find_hang(tables_of(dumps), world_size, "run")


def reduces(last: int, first: int = 1, **options: object) -> list[dict[str, object]]:
    """Return all-reduces of the default group up to number `last`, which alone is not over."""
    return [
        call("all_reduce", number, record=number - 1, at_ms=number, is_retired=number < last, **options)
        for number in range(first, last + 1)
    ]


def test_nothing_is_wrong_where_all_made_the_same_calls() -> None:
    over = [call("all_reduce", 1, ended_ms=1), call("barrier", 2, ended_ms=2)]
    found = hang({0: dump(over), 1: dump(over)})
    assert (found.divergences, found.culprits, found.without_dump) == ([], [], [])


def test_a_rank_that_made_no_call_at_all_is_missing_from_the_first() -> None:
    found = hang({0: dump(reduces(1)), 1: dump([])})
    place = found.divergences[0]
    assert (place.kind, place.sequence, place.operation, found.culprits) == ("missing", 1, "all_reduce", [1])
    assert place.missing[0].last is None


def test_a_call_that_all_wait_in_is_unfinished_and_accuses_nobody() -> None:
    found = hang({0: dump(reduces(2)), 1: dump(reduces(2))})
    [place] = found.divergences
    assert (place.kind, place.sequence, place.operation) == ("unfinished", 2, "all_reduce")
    assert found.culprits == []


def test_a_call_that_has_ended_on_one_rank_was_made_by_all() -> None:
    found = hang({0: dump(reduces(2)), 1: dump([*reduces(1), call("all_reduce", 2, is_retired=True)])})
    assert found.divergences == []


def test_a_dump_that_is_only_older_is_no_hang() -> None:
    ahead = [call("all_reduce", number, ended_ms=number) for number in (1, 2, 3)]
    assert hang({0: dump(ahead), 1: dump(ahead[:2])}).divergences == []


@pytest.mark.parametrize(
    ("odd", "culprits"),
    [({"shape": (9,)}, [1]), ({"shape": (2, 4)}, [])],
    ids=["another size", "another shape of the same size"],
)
def test_sizes_count_and_shapes_do_not(odd: dict[str, object], culprits: list[int]) -> None:
    found = hang(
        {0: dump(reduces(2)), 1: dump([*reduces(1), call("all_reduce", 2, **odd)]), 2: dump(reduces(2))}
    )
    assert found.culprits == culprits
    [place] = found.divergences
    assert (place.kind, place.operation) == ("mismatch" if culprits else "unfinished", "all_reduce")


def test_of_two_ranks_that_differ_neither_is_right() -> None:
    found = hang({0: dump(reduces(1)), 1: dump([call("broadcast", 1)])})
    assert found.culprits == [0, 1]
    assert found.divergences[0].waiting == []


def test_uneven_operations_are_compared_on_the_side_that_all_share() -> None:
    """Of a scatter the root alone has inputs; of an all-to-all each rank sends what it likes."""
    root, other = call("scatter", 1, is_retired=True), call("scatter", 1, is_retired=True)
    other["input_sizes"], other["input_dtypes"] = [], []
    uneven = [call("all_to_all_single", 2, shape=(size,), is_retired=True) for size in (4, 6)]
    assert hang({0: dump([root, uneven[0]]), 1: dump([other, uneven[1]])}).divergences == []


def test_a_rank_without_a_dump_is_that_and_not_missing() -> None:
    found = hang({0: dump(reduces(2)), 1: dump(reduces(2)), 3: dump(reduces(2))})
    assert [each.kind for each in found.divergences] == ["no dump"]
    assert (found.culprits, found.without_dump) == ([2], [2])


def test_the_last_rank_without_a_dump_is_known_from_the_stated_world_size() -> None:
    dumps = {0: dump(reduces(2)), 1: dump(reduces(2))}
    assert hang(dumps).without_dump == []
    assert hang(dumps, 3).without_dump == [2]


def test_the_last_rank_without_a_dump_is_known_from_what_an_all_gather_has_room_for() -> None:
    gather = call("all_gather", 1)
    gather["output_sizes"] = [[3, 8]]
    assert hang({0: dump([gather]), 1: dump([gather])}).without_dump == [2]


def test_comparison_begins_where_every_ring_buffer_does() -> None:
    """Rank 1 keeps three calls, of which the first is number 5; what others did before is not compared."""

    def early(operation: str) -> dict[str, object]:
        return dump([call(operation, 1, record=0, is_retired=True), *reduces(8, first=2)])

    found = hang({0: early("broadcast"), 1: dump(reduces(7, first=5)), 2: early("barrier")})
    assert [(each.kind, each.sequence) for each in found.divergences] == [("missing", 8)]
    assert found.culprits == [1]


def test_a_rank_whose_calls_of_the_group_are_all_overwritten_is_unknown() -> None:
    other = [call("all_reduce", number, record=50 + number, group=TP, is_retired=True) for number in (1, 2)]
    groups = {"1": [2]}
    found = hang({0: dump(reduces(3)), 1: dump(reduces(3)), 2: dump(other, groups)})
    place = found.divergences[0]
    assert (place.kind, place.overwritten, place.missing) == ("missing", [2], [])
    assert found.culprits == [2]


def test_groups_of_one_name_are_told_apart_by_their_members() -> None:
    """`split_group` gives both halves one name; numbers of one say nothing of the other."""
    half = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    lasts = {0: 2, 1: 2, 2: 5, 3: 4}
    dumps = {
        rank: dump(reduces(lasts[rank], group=("1", "half")), {"1": members})
        for rank, members in half.items()
    }
    found = hang(dumps)
    places = [(each.kind, each.members, each.sequence) for each in found.divergences]
    assert places == [("missing", [2, 3], 5), ("unfinished", [0, 1], 2)]
    assert found.culprits == [3]


def test_a_group_that_waits_for_a_waiting_rank_only_follows() -> None:
    """Rank 2 left; 0 and 1 wait for it in the world, so that 3 waits for 1 in their group of two."""
    pair = call("all_gather", 1, group=("1", "tp"), at_ms=9)
    groups = {"1": [1, 3]}
    world = {"0": [0, 1, 2]}
    dumps = {
        0: dump(reduces(4), world),
        1: dump(reduces(4), world | groups),
        2: dump(reduces(4)[:3], world),
        3: dump([pair], groups),
    }
    found = hang(dumps)
    assert found.culprits == [2]
    assert [(each.kind, each.follows_from) for each in found.divergences] == [
        ("missing", None),
        ("missing", 0),
    ]
    assert found.divergences[1].missing[0].waits_in == 0


def test_a_rank_that_two_groups_wait_for_is_one_cause() -> None:
    """Rank 2 stops; 0 and 1 wait for it at 2 ms, and 3, whose group has 1 as well, at 5 ms."""
    world, groups = {"0": [0, 1, 2]}, {"1": [1, 2, 3]}
    over = call("all_gather", 1, group=TP, is_retired=True)
    dumps = {
        0: dump(reduces(2), world),
        1: dump([over, *reduces(2)], world | groups),
        2: dump([over, *reduces(1)], world | groups),
        3: dump([over, call("all_gather", 2, group=TP, at_ms=5, shape=(2, 3))], groups),
    }
    first, second = hang(dumps).divergences
    assert [(each.rank, each.waits_in) for each in second.missing] == [(1, 0), (2, None)]
    assert (first.follows_from, second.follows_from) == (None, 0)
    assert [(each.rank, each.shapes, each.dtypes) for each in second.waiting] == [(3, [[2, 3]], ["Float"])]


def test_ranks_that_wait_for_each_other_accuse_the_fewer() -> None:
    """Rank 1 began with the other of two groups of all ranks: each group waits for who waits in the other."""
    ranks = [0, 1, 2]
    groups = {"1": ranks, "2": ranks}
    usual = dump([call("all_reduce", 1, group=("1", "a"), at_ms=2)], groups)
    odd = dump([call("all_reduce", 1, group=("2", "b"), at_ms=1)], groups)
    found = hang({0: usual, 1: odd, 2: usual})
    assert found.culprits == [1]
    assert [each.is_mutual for each in found.divergences] == [True, True]


def test_who_else_is_in_a_group_that_no_dump_lists_may_be_missing() -> None:
    """Nothing in the group of rank 0 is over, so it is not alone in it; rank 2 has a group of its own."""
    pair = call("all_reduce", 1, group=("5", "pair"))
    other = call("all_reduce", 1, group=("6", "pair"), is_retired=True)
    alone = call("barrier", 1, group=("7", "alone"), is_retired=True)
    found = hang({0: dump([pair]), 1: dump([alone]), 2: dump([other])})
    place = found.divergences[0]
    assert (place.kind, place.members, place.possible, found.culprits) == ("missing", [0], [1], [1])


def test_a_group_in_which_a_call_is_over_has_no_other_members() -> None:
    calls = reduces(2, group=("5", "pair"))
    alone = call("barrier", 1, group=("7", "alone"), is_retired=True)
    found = hang({0: dump(calls), 1: dump(calls), 2: dump([alone])})
    assert [(each.kind, each.members, each.possible) for each in found.divergences] == [
        ("unfinished", [0, 1], [])
    ]


def test_a_receive_without_its_send_names_the_sender() -> None:
    groups = {"0": [0, 1]}
    send, receive = call("send 0->1", 1, ended_ms=1), call("recv 1<-0", 1, ended_ms=1)
    dumps = {0: dump([send], groups), 1: dump([receive, call("recv 1<-0", 2, at_ms=2)], groups)}
    found = hang(dumps)
    place = found.divergences[0]
    assert (place.kind, place.operation, place.sequence, place.is_p2p) == ("missing", "message 0->1", 2, True)
    assert [each.rank for each in place.waiting] == [1]
    assert found.culprits == [0]


def test_ranks_of_messages_are_those_in_the_group() -> None:
    groups = {"1": [2, 5]}
    dumps = {2: dump([call("send 0->1", 1, group=("1", "pp"))], groups), 5: dump([], groups)}
    place = hang(dumps).divergences[0]
    assert (place.operation, [each.rank for each in place.missing]) == ("message 2->5", [5])


def test_a_message_of_another_size_differs_on_both_sides() -> None:
    groups = {"0": [0, 1]}
    dumps = {
        0: dump([call("send 0->1", 1, shape=(8,))], groups),
        1: dump([call("recv 1<-0", 1, shape=(9,))], groups),
    }
    found = hang(dumps)
    assert [(each.kind, each.is_p2p) for each in found.divergences] == [("mismatch", True)]
    assert found.culprits == [0, 1]


def test_a_send_that_is_over_waits_for_no_receive() -> None:
    groups = {"0": [0, 1]}
    dumps = {0: dump([call("send 0->1", 1, ended_ms=1)], groups), 1: dump([], groups)}
    assert hang(dumps).divergences == []


def test_what_is_coalesced_is_over_with_the_call_that_ends_it() -> None:
    """NCCL times a batch of sends and receives as one; its parts stay `scheduled`."""
    groups = {"0": [0, 1]}
    end = call("coalesced", 1, ended_ms=3)
    end |= {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0}
    parts = {0: "send 0->1", 1: "recv 1<-0"}
    whole = {rank: dump([call(part, 1), end], groups) for rank, part in parts.items()}
    assert hang(whole).divergences == []
    assert hang({**whole, 1: dump([], groups)}).divergences == []


GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (0, 1, 2, 3)}

_Program = list[tuple[str, str]]
"""Calls of a rank in order, each as (group, operation)."""


def walk(programs: Mapping[int, _Program]) -> dict[int, list[tuple[str, str, bool]]]:
    """Let ranks walk through their programs until none can go on; return {rank: calls, each with "is over"}.

    A rank waits in a call until every member of the group stands at its own call of that number.
    """
    at = dict.fromkeys(programs, 0)
    made: dict[int, list[tuple[str, str, bool]]] = {rank: [] for rank in programs}

    def standing(rank: int) -> tuple[str, str, int] | None:
        """Return the group, the operation and the number of the call that a rank stands at."""
        if at[rank] == len(programs[rank]):
            return None
        group, operation = programs[rank][at[rank]]
        return group, operation, sum(each[0] == group for each in made[rank])

    def meets(name: str) -> bool:
        places = {standing(rank) for rank in GROUPS[name]}
        return len(places) == 1 and (places.pop() or ("",))[0] == name

    while ready := next(filter(meets, GROUPS), None):
        for rank in GROUPS[ready]:
            made[rank].append((*programs[rank][at[rank]], True))
            at[rank] += 1
    for rank in programs:
        if at[rank] < len(programs[rank]):
            made[rank].append((*programs[rank][at[rank]], False))
    return made


def expected(made: Mapping[int, Sequence[tuple[str, str, bool]]]) -> dict[str, tuple[str, int, set[int]]]:
    """Return {group: (kind, number, ranks)} by looking at one call after the other."""
    found = {}
    for name, members in GROUPS.items():
        lists = {rank: [op for group, op, _ in made[rank] if group == name] for rank in members}
        for number in count():
            there = {rank: ops[number] for rank, ops in lists.items() if len(ops) > number}
            if not there:
                break
            if len({*there.values()}) > 1:
                found[name] = ("mismatch", number + 1, {*there})
                break
            if len(there) < len(members):
                found[name] = ("missing", number + 1, {*members} - {*there})
                break
    return found


programs = st.lists(
    st.tuples(st.sampled_from([*GROUPS]), st.sampled_from(["all_reduce", "broadcast"])),
    min_size=1,
    max_size=8,
)


@given(programs, st.integers(0, 3), st.sampled_from(["leave", "swap", "other", "skip"]), st.integers(0, 7))
def test_what_ranks_that_walk_through_programs_lack_is_found(
    common: _Program, odd: int, change: str, place: int
) -> None:
    """All ranks have one program, of which each makes the calls of its groups; one rank deviates."""
    each = {rank: [c for c in common if rank in GROUPS[c[0]]] for rank in range(4)}
    mine = each[odd]
    place = min(place, max(len(mine) - 1, 0))
    if change == "leave":
        del mine[place:]
    elif change == "skip":
        del mine[place : place + 1]
    elif change == "swap":
        mine[place : place + 2] = mine[place : place + 2][::-1]
    elif mine:
        mine[place] = (mine[place][0], "reduce_scatter")
    made = walk(each)
    dumps = {}
    for rank, calls in made.items():
        numbers = {name: count(1) for name in GROUPS}
        entries = [
            call(operation, next(numbers[group]), group=(group, f"g{group}"), at_ms=at, is_retired=over)
            for at, (group, operation, over) in enumerate(calls)
        ]
        dumps[rank] = dump(entries, {name: of for name, of in GROUPS.items() if rank in of})
    found = hang(dumps)
    places = {
        each.group: (
            each.kind,
            each.sequence,
            {m.rank for m in each.missing}
            if each.kind == "missing"
            else {c.rank for c in (*each.waiting, *each.differing)},
        )
        for each in found.divergences
    }
    assert places == expected(made)
    assert bool(found.culprits) == bool(places)
    gone = {rank for rank, calls in made.items() if not calls or calls[-1][2]}
    if found.divergences and found.divergences[0].kind == "missing" and not found.divergences[0].is_mutual:
        assert {*found.culprits} <= gone


@pytest.mark.parametrize(
    ("dumps", "begin"),
    [
        (
            {0: reduces(1), 1: []},
            "Rank 1 is missing in all_reduce, collective 1 of default_pg, where",
        ),
        ({0: reduces(1), 1: reduces(1), 2: [], 3: []}, "Ranks 2-3 are missing in all_reduce, collective 1"),
        ({0: reduces(2), 1: reduces(2)}, "No rank is missing: all members called all_reduce, collective 2"),
        ({0: reduces(2), 1: reduces(2), 3: reduces(2)}, "Rank 2 left no dump, and ranks 0-1, 3 wait in"),
        (
            {0: reduces(1), 1: [call("broadcast", 1)]},
            "Calls do not match: ranks 0-1 made a different call in",
        ),
        (
            {0: reduces(1), 1: [call("broadcast", 1)], 2: reduces(1)},
            "Calls do not match: rank 1 called broadcast",
        ),
        ({0: [], 1: []}, "No rank is missing: in every group the ranks made the same calls"),
    ],
)
def test_a_hang_is_answered_in_one_sentence(dumps: Mapping[int, list[dict[str, object]]], begin: str) -> None:
    assert verdict(hang({rank: dump(calls) for rank, calls in dumps.items()})).startswith(begin)


def test_a_rank_s_list_of_a_group_counts_for_members_that_list_none() -> None:
    tp = [call("all_reduce", 1, group=TP)]
    found = hang({0: dump(tp, {"1": [0, 1]}), 1: dump(tp), 2: dump([])})
    places = [(each.kind, each.members, each.possible) for each in found.divergences]
    assert places == [("unfinished", [0, 1], [])]


def test_a_message_to_a_rank_without_a_dump_says_so() -> None:
    groups = {"1": [0, 1]}
    found = hang({0: dump([call("send 0->1", 1, group=("1", "pp"))], groups)})
    [place] = found.divergences
    assert (place.kind, place.without_dump, place.missing, place.is_p2p) == ("no dump", [1], [], True)
    assert (place.operation, [waiter.rank for waiter in place.waiting]) == ("message 0->1", [0])


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        (["/lib/python3/site-packages/torch/c.py", "/src/train.py", "/src/main.py"], "/src/train.py"),
        (["/lib/python3/site-packages/torch/c.py", "/lib/python3/site-packages/mine/a.py"], "mine/a.py"),
        (["torch/a.py", "torch/b.py"], "torch/a.py"),
        ([], None),
    ],
)
def test_the_innermost_frame_of_the_program_is_shown_else_of_a_package_else_of_all(
    files: list[str], shown: str | None
) -> None:
    waits = call("all_reduce", 1)
    waits["frames"] = [{"name": "f", "filename": file, "line": 1} for file in files]
    [place] = hang({0: dump([waits]), 1: dump([])}).divergences
    frame = place.waiting[0].frame
    assert (frame is None) is (shown is None)
    assert frame is None or frame.file.endswith(str(shown))
