"""Which collectives are matched and carry a wait, by rules on tables."""

import polars as pl
import pytest
from checking import findings_in
from cross_runs import call, facts, frame, group, matched

from ccl_bench.analysis.communication.matching import with_peers
from ccl_bench.analysis.derived import DERIVED

TWO = group("g", 0, 1)


@pytest.mark.parametrize(
    "collective", ["broadcast", "reduce", "gather", "scatter", "coalesced", "other_communication"]
)
def test_rooted_and_nameless_collectives_are_matched_and_carry_no_wait(collective: str):
    found = matched([call(0, 1, 0, 10, collective=collective), call(1, 1, 4, 10, collective=collective)], TWO)
    assert found["number"].to_list() == [1, 1]
    assert found["wait_ns"].to_list() == found["transfer_ns"].to_list() == [None, None]


def test_an_all_to_all_carries_a_wait_only_where_its_parts_are_equal():
    even = [call(0, 1, 0, 10, collective="all_to_all"), call(1, 1, 4, 10, collective="all_to_all")]
    assert matched(even, TWO)["wait_ns"].to_list() == [4, 0]
    uneven = [even[0], even[1] | {"uneven": True, "size_bytes": 12}]
    found = matched(uneven, TWO)
    assert found["wait_ns"].to_list() == [None, None]
    assert found["agrees"].to_list() == [True, True]


def test_messages_between_two_ranks_are_no_collectives():
    rows = [call(0, 1, 0, 10, collective="send", peer=1), call(1, 1, 4, 10, collective="recv", peer=0)]
    assert matched(rows, TWO).is_empty()


def test_recorded_numbers_match_calls_of_recordings_that_began_apart():
    rows = [call(0, k, 10 * k, 10 * k + 5, sequence=k, size_bytes=k) for k in (1, 2, 3)]
    rows += [call(1, k - 1, 10 * k + 2, 10 * k + 5, sequence=k, size_bytes=k) for k in (2, 3)]
    found = matched(rows, TWO)
    assert found.sort("rank", "number").select("rank", "number", "size_bytes", "wait_ns").rows() == [
        (0, 2, 2, 2),
        (0, 3, 3, 2),
        (1, 2, 2, 0),
        (1, 3, 3, 0),
    ]


def test_without_recorded_numbers_such_recordings_contradict_each_other():
    rows = [call(0, k, 10 * k, 10 * k + 5, size_bytes=k) for k in (1, 2, 3)]
    rows += [call(1, k - 1, 10 * k + 2, 10 * k + 5, size_bytes=k) for k in (2, 3)]
    found = matched(rows, TWO)
    assert (found["agrees"].any(), found["wait_ns"].null_count()) == (False, 4)
    findings = findings_in({"matched": found})
    assert [(finding.code, finding.count) for finding in findings] == [
        ("collectives-disagree", 2),
        ("collectives-lacking", 1),
    ]


def test_a_number_that_repeats_on_a_rank_gives_way_to_the_order():
    rows = [call(r, k, 10 * k + r, 10 * k + 5, sequence=7) for r in (0, 1) for k in (1, 2)]
    assert matched(rows, TWO).sort("rank", "number")["number"].to_list() == [1, 2, 1, 2]


def test_windows_of_recording_do_not_mix():
    rows = [
        call(r, 1, 10 * w + r, 10 * w + 5, sequence=1, iteration=w, trace=2 * w + r)
        for r in (0, 1)
        for w in (1, 2)
    ]
    found = matched(rows, TWO)
    assert found.group_by("iteration").agg(pl.col("rank").sort()).sort("iteration").rows() == [
        (1, [0, 1]),
        (2, [0, 1]),
    ]


def test_calls_in_a_group_of_one_and_of_ranks_alone_are_not_matched():
    assert matched([call(0, 1, 0, 10)], group("g", 0)).is_empty()
    assert matched([call(0, 1, 0, 10)], TWO).is_empty()


def test_a_group_without_size_is_one_group_unless_the_card_states_several():
    silent = frame(
        "call_groups",
        [{"group": "? size", "known_from": "unknown", "trace": rank, "rank": rank} for rank in range(4)],
    )
    compute = DERIVED.get("groups").compute
    assert compute(silent, facts(world_size=4, tp=4))["ambiguous"].to_list() == [False]
    assert compute(silent, facts(world_size=4, tp=2, dp_shard=2))["ambiguous"].to_list() == [True]
    rows = [call(rank, 1, rank, 10, group="? size") for rank in (0, 1)]
    [finding] = findings_in({"matched": matched(rows, group("? size"))})
    assert (finding.code, finding.count) == ("groups-assumed", 1)


@pytest.mark.parametrize(
    ("size", "source", "ranks", "ambiguous"),
    [
        (2, "name", 2, False),
        (2, "name", 3, True),
        (2, "unknown", 2, True),
        (4, "unknown", 2, False),
        (4, "unknown", 5, False),  # as large as the job: its members are known
        (5, "unknown", 6, True),
    ],
)
def test_a_group_of_unknown_members_may_be_several_if_it_is_a_part_without_number_or_more_ranks_use_it(
    size: int, source: str, ranks: int, ambiguous: bool
):
    rows = [{"group": "g", "size": size, "known_from": source, "trace": r, "rank": r} for r in range(ranks)]
    found = DERIVED.get("groups").compute(frame("call_groups", rows), facts(world_size=4))
    assert found.select("seen_by", "ambiguous").rows() == [(ranks, ambiguous)]


def test_an_assumed_group_in_which_one_call_does_not_fit_shows_no_waiting_at_all():
    names = {0: ["all_reduce", "all_gather", "all_reduce"], 1: ["all_reduce", "all_reduce", "all_reduce"]}
    rows = [
        call(rank, number, 100 * number + rank, 100 * number + 50, collective=name, group="? size")
        for rank, called in names.items()
        for number, name in enumerate(called, 1)
    ]
    found = matched(rows, group("? size"))
    assert found["wait_ns"].to_list() == [None] * 6
    finding, _ = findings_in({"matched": found})
    assert (finding.code, finding.severity) == ("groups-assumed", "warning")
    assert "the calls of 1 do not match" in finding.message


def test_ranks_that_are_not_known_count_one_by_one():
    rows = [
        {"group": "? size 2", "size": 2, "known_from": "name", "trace": t, "rank": None} for t in range(3)
    ]
    found = DERIVED.get("groups").compute(frame("call_groups", rows), facts())
    assert found.select("seen_by", "ambiguous").rows() == [(3, True)]


def test_a_group_is_described_as_its_first_trace_does():
    rows = [
        {"group": "g", "members": members, "size": len(members), "known_from": how, "description": text,
         "trace": trace, "rank": trace}
        for trace, (members, how, text) in enumerate([([0, 1], "recorded", "a"), ([0, 1, 2], "name", "b")])
    ]  # fmt: skip
    found = DERIVED.get("groups").compute(frame("call_groups", rows), facts())
    shown = found.select("members", "size", "known_from", "description").rows()
    assert shown == [([0, 1], 2, "recorded", "a")]


def test_a_rank_is_complete_where_all_members_of_each_of_its_groups_have_a_trace():
    pairs = [group("a", 0, 1), group("b", 1, 2, 3)]
    rows = [call(0, 1, 0, 10, group="a"), call(1, 1, 4, 10, group="a")]
    rows += [call(rank, 2, 20 + rank, 30, group="b") for rank in (1, 2)]  # rank 3 has no trace
    found = matched(rows, *pairs).sort("group", "rank")
    assert found.select("group", "rank", "complete").rows() == [
        ("a", 0, True),
        ("a", 1, False),
        ("b", 1, False),
        ("b", 2, False),
    ]


def guessed(messages: list[tuple[int, str, int, int | None]], kinds: dict[str, list[list[int]]]) -> list:
    """Return the peers of messages, given as (rank, side, place of the other, bytes)."""
    rows = [
        {"iteration": None, "rank": rank, "collective": side, "peer_position": place, "size_bytes": size}
        | {"peer": None, "peer_at_place": None}
        for rank, side, place, size in messages
    ]
    listed = [
        {"iteration": None, "rank": rank, "kind": kind, "ranks": ranks}
        for kind, groups in kinds.items()
        for ranks in groups
        for rank in ranks
    ]
    integers = dict.fromkeys(("iteration", "rank", "peer_position", "peer", "peer_at_place"), pl.Int64)
    sides = {**integers, "size_bytes": pl.Int64}
    found = with_peers(
        pl.DataFrame(rows, schema_overrides=sides),
        pl.DataFrame(listed, schema={"iteration": pl.Int64, "rank": pl.Int64, "kind": pl.String,
                                     "ranks": pl.List(pl.Int64)}),
        4,
    )  # fmt: skip
    return found["peer"].to_list()


PAIRS = {"pairs": [[0, 1], [2, 3]]}


@pytest.mark.parametrize(
    ("sent", "received", "peers"),
    [
        (8, 8, [1, 0]),
        (8, 12, [None, None]),
        (8, None, [1, 0]),
        (None, 12, [1, 0]),
        (None, None, [1, 0]),
    ],
)
def test_a_guessed_group_stands_unless_known_sizes_of_its_messages_differ(
    sent: int | None, received: int | None, peers: list[int | None]
):
    assert guessed([(0, "send", 1, sent), (1, "recv", 0, received)], PAIRS) == peers


def test_a_guessed_group_falls_where_the_other_rank_was_recorded_and_has_no_other_end():
    # in pairs rank 0 sends to 1, which receives nothing; across, it sends to 2, which receives from it
    across = {"across": [[0, 2], [1, 3]]}
    messages = [(0, "send", 1, 8), (2, "recv", 0, 8), (1, "send", 1, 8), (3, "recv", 0, 8)]
    assert guessed(messages, across | PAIRS) == [2, 0, 3, 1]
    assert guessed(messages, PAIRS) == [None] * 4


def test_where_two_kinds_of_groups_stand_the_peer_is_unknown():
    # nothing of ranks 1 and 2 was recorded, so either may be the other end
    assert guessed([(0, "send", 1, 8)], PAIRS | {"across": [[0, 2], [1, 3]]}) == [None]
    assert guessed([(0, "send", 1, 8)], PAIRS) == [1]


def test_no_rank_sends_to_itself():
    assert guessed([(0, "send", 0, 8), (0, "recv", 0, 8)], PAIRS) == [None, None]


def test_without_listed_groups_the_place_is_that_among_all_ranks():
    assert guessed([(0, "send", 3, 8), (3, "recv", 0, 8)], {}) == [3, 0]
