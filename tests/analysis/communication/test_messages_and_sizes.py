"""Sizes of calls, messages between two ranks, and who sends how much to whom."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from checking import findings_in
from cross_runs import (
    call,
    frame,
    result,
    results,
    rewrite,
    tables,
    tables_and_codes,
    tables_and_results,
)

from ccl_bench.analysis.communication.arguments import with_sizes
from ccl_bench.analysis.communication.bandwidth import RAW
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.schema import TABLES
from ccl_bench.testing import Experts, Plan, plans, trace_path, write_run


def test_an_uneven_all_to_all_counts_what_goes_to_others_and_keeps_its_waiting(tmp_path: Path):
    expected = write_run(plans.uneven_experts(), tmp_path)
    rows = tables(tmp_path, "transfers")["transfers"].filter(pl.col("collective") == "all_to_all")
    assert set(rows["basis"]) == {RAW}
    assert set(rows["bus_factor"]) == {1.0}
    exchanges = [operation for operation in expected.operations if operation.collective == "all_to_allv"]
    moved = sorted(operation.bytes(rank) for operation in exchanges for rank in operation.members)
    assert sorted(rows["size_bytes"].to_list()) == moved
    # every rank sends (50, 25, 225, 100) rows of 2048 bytes: rank 2 gets 3 x 225 from others, and sends 175
    assert max(moved) == max(3 * 225, 50 + 25 + 100) * 2048


def test_a_rank_that_sends_no_token_has_a_size_and_breaks_nothing(tmp_path: Path):
    plan = Plan(dp_shard=2, ep=2, steps=1, layers=1, experts=Experts(((0, 0), (5, 3))))
    expected = write_run(plan, tmp_path)
    rows = tables(tmp_path, "traffic")["traffic"].filter(pl.col("collective") == "all_to_all")
    moved = [
        operation.bytes(rank)
        for operation in expected.operations
        if operation.dimension == "ep"
        for rank in operation.members
    ]
    assert sorted(rows["size_bytes"].to_list()) == sorted(moved)


def test_a_group_of_one_moves_nothing_and_has_no_bandwidth(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1, layers=1), tmp_path)

    def alone(trace: dict[str, Any]) -> None:
        rank = trace["distributedInfo"]["rank"]
        for event in trace["traceEvents"]:
            if "Group size" in (arguments := event.get("args", {})):
                arguments |= {"Group size": 1, "Process Group Ranks": f"[{rank}]"}

    for rank in (0, 1):
        rewrite(trace_path(tmp_path, rank), alone)
    found = tables(tmp_path, "traffic", "transfers", "waits")
    assert set(found["traffic"]["size_bytes"]) == {0}
    assert found["transfers"].is_empty()
    assert found["waits"].is_empty()
    for one in results(tmp_path, "traffic_distribution", "bandwidth_utilization_allgather"):
        assert one.status == "not_measurable"


def test_one_side_of_a_collective_gives_the_whole_message():
    rows = [
        ("all_gather", 10, None),
        ("reduce_scatter", None, 10),
        ("gather", 10, None),
        ("scatter", None, 10),
        ("all_reduce", 10, None),
    ]
    known = {
        "dtype": "Float",
        "group_size": 4,
        "own_sizes": False,
        "in_split": None,
        "out_split": None,
        "own_position": None,
    }
    columns = [{"collective": c, "in_elements": i, "out_elements": o} | known for c, i, o in rows]
    types = {
        "in_split": pl.List(pl.Int64),
        "out_split": pl.List(pl.Int64),
        "own_position": pl.Int64,
        "group_size": pl.Int64,
        "in_elements": pl.Int64,
        "out_elements": pl.Int64,
    }
    found = with_sizes(pl.DataFrame(columns, schema_overrides=types))
    assert found["size_bytes"].to_list() == [160, 160, 160, 160, 40]


@pytest.mark.parametrize(
    ("sent", "received", "uneven"),
    [([2, 2], [2, 2], False), ([1, 3], [2, 2], True), ([2, 2], [1, 3], True), ([4], [4], False)],
)
def test_an_all_to_all_is_uneven_where_parts_of_either_side_differ(
    sent: list[int], received: list[int], uneven: bool
):
    known = {"collective": "all_to_all", "dtype": "Float", "group_size": len(sent), "own_position": 0}
    row = known | {"in_elements": 4, "out_elements": 4, "own_sizes": False}
    found = with_sizes(pl.DataFrame([row | {"in_split": sent, "out_split": received}]))
    assert found["uneven"].to_list() == [uneven]


@pytest.mark.parametrize(
    ("changed", "own_sizes", "uneven"),
    [
        ({}, False, False),
        ({"in_split": None}, False, False),  # the name says that parts are even
        ({"own_sizes": None}, False, False),
        ({"own_sizes": None, "in_split": None}, False, None),
        ({"own_sizes": None, "out_split": None}, False, None),
        ({"own_sizes": None, "in_split": [1, 3]}, True, True),
        ({"own_sizes": None, "in_split": None, "in_elements": 8}, True, True),
        ({"own_sizes": True}, True, False),
        ({"own_sizes": True, "in_split": None}, True, True),
        ({"own_sizes": True, "out_split": None}, True, True),
        ({"collective": "all_reduce"}, False, False),
        ({"collective": "all_reduce", "own_sizes": None, "in_split": None}, False, False),
        ({"collective": "all_gather", "own_sizes": None, "in_split": [1, 3], "in_elements": 1}, False, False),
    ],
)
def test_an_exchange_of_unknown_parts_is_neither_even_nor_uneven(
    changed: dict[str, Any], own_sizes: bool, uneven: bool | None
):
    known = {"collective": "all_to_all", "dtype": "Float", "group_size": 2, "own_position": 0}
    known |= {
        "in_elements": 4,
        "out_elements": 4,
        "own_sizes": False,
        "in_split": [2, 2],
        "out_split": [2, 2],
    }
    types = {"in_split": pl.List(pl.Int64), "out_split": pl.List(pl.Int64), "own_sizes": pl.Boolean}
    found = with_sizes(pl.DataFrame([known | changed], schema_overrides=types))
    assert found.select("own_sizes", "uneven").row(0) == (own_sizes, uneven)


def test_the_matrix_holds_messages_and_parts_of_all_to_alls(tmp_path: Path):
    tokens = ((3, 5), (7, 1))
    plan = Plan(
        dp_shard=2, ep=2, pp=2, microbatches=2, layers=1, steps=1, experts=Experts(tokens, hidden_size=8)
    )
    write_run(plan, tmp_path)
    found = tables(tmp_path, "traffic_matrix")["traffic_matrix"]
    by_kind = {(r["source"], r["target"], r["kind"]): (r["calls"], r["bytes"]) for r in found.to_dicts()}
    # ranks 0 and 1 are stage 0, 2 and 3 stage 1: two microbatches each way of 4194304 bf16 elements
    messages = dict.fromkeys(((0, 2), (1, 3), (2, 0), (3, 1)), (2, 2 * 4_194_304 * 2))
    assert {pair[:2]: value for pair, value in by_kind.items() if pair[2] == "message"} == messages
    # 5 rows of 16 bytes go from place 0 to 1 and 7 back, a combine returns them, and both again backwards
    exchanged = {pair[:2]: value for pair, value in by_kind.items() if pair[2] == "all_to_all"}
    per_call = {(0, 1): 2 * (5 + 7) * 16, (1, 0): 2 * (7 + 5) * 16}
    assert exchanged == {(a + s, b + s): (8, 2 * rows) for (a, b), rows in per_call.items() for s in (0, 2)}


def test_an_even_all_to_all_sends_every_member_the_same(tmp_path: Path):
    plan = Plan(dp_shard=2, ep=2, layers=1, steps=1, experts=Experts(((4, 4), (4, 4)), hidden_size=8))
    write_run(plan, tmp_path)
    assert '"In split size":"[]"' in trace_path(tmp_path, 0).read_text()
    rows = (
        tables(tmp_path, "traffic_matrix")["traffic_matrix"]
        .select("source", "target", "calls", "bytes")
        .rows()
    )
    assert rows == [(0, 1, 4, 4 * 4 * 16), (1, 0, 4, 4 * 4 * 16)]


def test_messages_in_two_groups_between_the_same_ranks_are_counted_apart():
    rows = [
        call(
            rank,
            1,
            start,
            100,
            collective=kind,
            peer=1 - rank,
            group=name,
            size=2,
            dimension="pp",
            size_bytes=size,
        )
        for name, start, size in (("a 0,1", 0, 8), ("b 0,1", 10, 16))
        for rank, kind in ((0, "send"), (1, "recv"))
    ]
    found = DERIVED.get("messages").compute(frame("traffic", rows))
    assert found.select("source", "target", "size_bytes", "agrees").sort("size_bytes").rows() == [
        (0, 1, 8, True),
        (0, 1, 16, True),
    ]


def test_a_message_whose_ends_contradict_each_other_is_said_to():
    rows = [
        call(
            rank,
            1,
            0,
            100,
            collective=kind,
            peer=1 - rank,
            group="a 0,1",
            size=2,
            dimension="pp",
            size_bytes=size,
        )
        for rank, kind, size in ((0, "send", 8), (1, "recv", 12))
    ]
    found = DERIVED.get("messages").compute(frame("traffic", rows))
    assert found["agrees"].to_list() == [False]
    assert [finding.code for finding in findings_in({"messages": found})] == ["messages-disagree"]


def test_calls_without_size_are_listed_and_not_counted_as_nothing(tmp_path: Path):
    write_run(Plan(dp_shard=2, tp=2, steps=1, layers=1), tmp_path)

    def silent(trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"]:
            if (arguments := event.get("args", {})).get("Collective name") == "_allgather_base":
                del arguments["In msg nelems"], arguments["Out msg nelems"]

    for rank in range(4):
        rewrite(trace_path(tmp_path, rank), silent)
    tables, metrics = tables_and_results(tmp_path, ["traffic"], ["traffic_distribution_16"])
    found = metrics["traffic_distribution_16"]
    gathers = tables["traffic"].filter(pl.col("collective") == "all_gather").height
    assert found.details["unattributed_calls_count"] == gathers
    # one reduce-scatter of float32 and four all-reduces of bfloat16
    assert found.value == pytest.approx((8_388_608 * 4 + 4 * 4_194_304 * 2) / 1e9)
    assert [finding.code for finding in found.findings] == ["calls-without-size"]


def places_for_ranks(trace: dict[str, Any]) -> None:
    """Name the other rank by its place in the group, and take the `Rank` of the operator away."""
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        arguments.pop("Rank", None)
        for end in {"Src Rank", "Dst Rank"} & set(arguments):
            ranks = json.loads(arguments["Process Group Ranks"])
            arguments[end] = ranks.index(arguments[end])


def test_a_recorded_peer_that_is_no_member_is_a_place_in_the_group(tmp_path: Path):
    plan = Plan(pp=2, dp_shard=2, microbatches=2, layers=1, steps=1)
    write_run(plan, tmp_path)
    before = tables(tmp_path, "messages")["messages"].select("source", "target", "size_bytes").rows()
    assert {(source, target) for source, target, _ in before} == {(0, 2), (1, 3), (2, 0), (3, 1)}
    for rank in range(4):
        rewrite(trace_path(tmp_path, rank), places_for_ranks)
    # in the group 1,3 rank 1 now sends to "1", and rank 3 receives from "0"
    after, said = tables_and_codes(tmp_path, "messages", "traffic")
    assert after["messages"].select("source", "target", "size_bytes").rows() == before
    assert "message-to-self" not in said


def test_a_receive_from_any_rank_proves_nothing_of_recorded_peers(tmp_path: Path):
    write_run(Plan(pp=2, dp_shard=2, microbatches=2, layers=1, steps=1), tmp_path)
    before = tables(tmp_path, "messages")["messages"].select("source", "target", "size_bytes").rows()

    def from_any(trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"]:
            arguments = event.get("args", {})
            arguments.pop("Rank", None)
            if "Src Rank" in arguments:
                arguments["Src Rank"] = -1

    rewrite(trace_path(tmp_path, 3), from_any)
    after, codes = tables_and_codes(tmp_path, "messages", "traffic")
    shown = after["messages"].select("source", "target", "size_bytes").rows()
    assert set(shown) <= set(before)
    assert {(source, target) for source, target, _ in shown} >= {(0, 2), (2, 0), (3, 1)}
    assert "message-to-self" not in codes


def test_a_message_from_a_rank_to_itself_is_an_error_and_refuses_the_bubble(tmp_path: Path):
    write_run(Plan(pp=2, dp_shard=2, microbatches=2, layers=1, steps=1), tmp_path)
    for rank in range(4):
        rewrite(trace_path(tmp_path, rank), without_groups)
    found = result(tmp_path, "bubble_size_pipeline")
    assert found.status == "not_measurable"
    assert "message-to-self" in {finding.code for finding in found.findings}


def without_groups(trace: dict[str, Any]) -> None:
    """Name places in groups of which nothing else is recorded."""
    places_for_ranks(trace)
    trace["distributedInfo"].pop("pg_config", None)
    for event in trace["traceEvents"]:
        for name in ("Process Group Ranks", "Global rank start", "Global rank stride"):
            event.get("args", {}).pop(name, None)


@pytest.mark.parametrize(
    ("sent", "received", "own_sizes", "found"),
    [
        (None, None, False, [(0, 1, 16.0, 16.0), (1, 1, 16.0, 16.0)]),  # 8 elements of 4 bytes in even halves
        ([], [], False, [(0, 1, 16.0, 16.0), (1, 1, 16.0, 16.0)]),
        (None, None, True, []),
        ([1, 3], [2, 2], True, [(0, 1, 8.0, 16.0), (1, 1, 24.0, 16.0)]),
        ([1, 3], None, False, []),
        ([1, 3], [1, 1, 2], False, []),
        ([0, 0], [2, 2], True, [(0, 1, 0.0, 16.0), (1, 1, 0.0, 16.0)]),
    ],
)
def test_exchanged_bytes_are_known_with_both_splits_or_where_they_are_even(
    sent: list[int] | None, received: list[int] | None, own_sizes: bool, found: list[tuple[Any, ...]]
):
    known = {"collective": "all_to_all", "dtype": "Float", "in_elements": 8, "out_elements": 8, "step": 1}
    row = known | {"in_split": sent, "out_split": received, "own_sizes": own_sizes, "group_ranks": [0, 1]}
    row["in_elements"] = 0 if sent == [0, 0] else 8
    calls = DERIVED.get("described_calls").table
    described = calls.frame({name: [row.get(name)] for name in calls.columns})
    exchanged = DERIVED.get("exchanges").compute(described, TABLES["process_groups"].empty())
    assert exchanged.select("position", "calls", "sent_bytes", "received_bytes").rows() == found
