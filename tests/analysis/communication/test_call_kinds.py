"""Kinds of calls, what the parts of calls take in a step, and who is at the other end, on tables by hand."""

from __future__ import annotations

from typing import Any

import pytest
from cross_runs import call, frame, group, matched

from ccl_bench.analysis.communication.arguments import starters
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES


def _kinds(
    calls: list[tuple[int, int | None, int | None, int, list[tuple[str, int]]]],
    skews: dict[int, tuple[list[int], int | None]],
) -> dict[int | None, dict[str, Any]]:
    """Return `call_kinds` by size of calls of rank 0 and then rank 1.

    A call is its rank, size, step, length, and (part, length) of its parts; `skews` has the places of the
    members of collectives, and the skew of each.
    """
    traffic, parts, members = [], [], []
    for place, (rank, size, step, length, own) in enumerate(calls):
        row = {"trace": rank, "rank": rank, "call": place, "step": step, "collective": "all_reduce"}
        row |= {"dimension": "tp", "size": 4, "size_bytes": size, "own_sizes": False}
        traffic.append(row | {"start_ns": 100, "end_ns": 100 + length})
        at = 100
        for part, ns in own:
            parts.append(row | {"part": part, "start_ns": at, "end_ns": at + ns})
            at += ns
    for number, (places, _) in skews.items():
        members += [{"trace": calls[p][0], "call": p, "group": "g", "number": number} for p in places]
    skewed = [{"group": "g", "number": n, "skew_ns": skew} for n, (_, skew) in skews.items()]
    known = pl.DataFrame(traffic).select("trace", "call", dtype=pl.lit("float"))
    found = DERIVED.get("call_kinds").compute(
        frame("traffic", traffic),
        known,
        frame("call_parts", parts),
        frame("matched", members),
        frame("arrivals", skewed),
    )
    return {row["size_bytes"]: row for row in found.iter_rows(named=True)}


WAITING, TRANSFER, UNKNOWN = "waiting", "transfer", "unknown"


def test_the_bandwidth_of_a_kind_is_that_of_transfers_where_all_of_these_are_known() -> None:
    calls: list[tuple[int, int | None, int | None, int, list[tuple[str, int]]]] = [
        (0, 800, 1, 100, [(WAITING, 40), (TRANSFER, 60)]),
        (1, 800, 1, 150, [(WAITING, 50), (TRANSFER, 100)]),
        (0, 800, 2, 300, [(WAITING, 60), (TRANSFER, 240)]),
        (0, 800, None, 999, [(TRANSFER, 999)]),
        (0, 4000, 1, 10, [(WAITING, 9), (TRANSFER, 1)]),
    ]
    found = _kinds(calls, {1: ([0, 1], 7), 2: ([2], 20), 3: ([4], None)})
    assert [*found] == [800, 4000]
    columns = ("calls", "duration_ns", "waiting_ns", "transfer_ns", "unknown_ns", "collectives", "skew_ns")
    assert [found[800][name] for name in columns] == [3, 550, 150, 400, 0, 2, 13.5]
    assert [found[4000][name] for name in columns] == [1, 10, 9, 1, 0, 0, None]
    assert [row["is_wait_free"] for row in found.values()] == [True, True]
    # an all-reduce of four ranks moves 2 x 3/4 of its message: 1200 bytes in 60, 100 and 240 ns
    assert found[800]["bus_bandwidth"] == pytest.approx(12)
    assert found[4000]["bus_bandwidth"] == pytest.approx(1.5 * 4000 / 1)


def test_the_bandwidth_of_a_kind_is_that_of_whole_calls_where_one_of_these_may_have_waited() -> None:
    calls: list[tuple[int, int | None, int | None, int, list[tuple[str, int]]]] = [
        # 2400 bytes move in 50, 200 and 1 ns; what has no length has no bandwidth
        (0, 1600, 1, 50, [(TRANSFER, 50)]),
        (0, 1600, 1, 200, [(TRANSFER, 150), (UNKNOWN, 50)]),
        (0, 1600, 1, 1, [(TRANSFER, 1)]),
        (0, 1600, 1, 0, []),
        (0, 2000, 1, 40, [(WAITING, 40)]),
        (0, None, 1, 40, [(WAITING, 40)]),
        (0, 3000, 1, 40, [(TRANSFER, 39), (UNKNOWN, 1)]),
        (0, 5000, 1, 60, [(TRANSFER, 60)]),
        (0, 5000, 1, 30, []),  # nothing is known of it
    ]
    found = _kinds(calls, {})
    # the most time first, and of equal times the smallest message; unknown sizes come last
    assert [*found] == [1600, 5000, 2000, 3000, None]
    assert [row["is_wait_free"] for row in found.values()] == [False] * 5
    assert found[1600]["bus_bandwidth"] == pytest.approx(1.5 * 1600 / 50)
    assert found[2000]["bus_bandwidth"] == pytest.approx(1.5 * 2000 / 40)
    assert found[3000]["bus_bandwidth"] == pytest.approx(1.5 * 3000 / 40)
    assert found[5000]["bus_bandwidth"] == pytest.approx((125 + 250) / 2)  # 7500 bytes in 60 and in 30 ns
    assert found[None]["bus_bandwidth"] is None


def test_parts_that_were_never_exposed_have_a_time_and_none_that_is_exposed() -> None:
    keys = {"trace": 0, "rank": 0, "call": 3}
    kind = {"collective": "all_reduce", "dimension": "tp"}
    parts = [
        keys | kind | {"part": part, "start_ns": start, "end_ns": end}
        for part, start, end in ((WAITING, 0, 10), (TRANSFER, 10, 30))
    ]
    stretches = [
        keys | {"step": 1, "start_ns": start, "end_ns": end, "is_exposed": is_exposed}
        for start, end, is_exposed in ((0, 30, False), (12, 18, True))
    ]
    tables = frame("call_stretches", stretches), frame("call_parts", parts)
    found = DERIVED.get("communication_parts").compute(*tables)
    assert found.select("part", "time_ns", "exposed_ns").rows() == [(TRANSFER, 20, 6), (WAITING, 10, 0)]
    whole = DERIVED.get("collective_parts").compute(*tables)
    assert whole.select("part", "time_ns").rows() == [(TRANSFER, 20), (WAITING, 10)]


def test_a_trace_without_any_call_of_a_step_lacks_all_that_others_have_there() -> None:
    rows = [call(rank, 1, 10, 20) for rank in (0, 1, 2)]
    rows += [call(rank, order, 10 * order, 10 * order + 5, step=2) for rank in (0, 1) for order in (2, 3)]
    rows += [call(rank, 4, 40, 45, step=3) for rank in (0, 2)]
    found = matched(rows[:-2], group("g", 0, 1, 2))
    by_step = dict(found.select("step", "gaps").unique().sort("step").iter_rows())
    assert by_step == {1: 0, 2: 2}  # rank 2 has neither of the two calls
    found = matched(rows, group("g", 0, 1, 2))
    assert found.filter(pl.col("rank") == 0).select("step", "gaps").unique().sort("step").rows()[0] == (1, 0)


def test_a_range_of_gloo_that_no_operator_started_has_no_starter() -> None:
    ranges = TABLES["annotations"].frame(
        {
            "name": ["gloo:broadcast", "gloo:all_reduce"],
            "start_ns": [60, 50],
            "end_ns": [70, 59],
            "thread": [6, 5],
        }
    )
    operator = {"source": ["host"], "name": ["allreduce"], "start_ns": [10], "end_ns": [19], "thread": [1]}
    found = starters(ranges, TABLES["collectives"].frame(operator))
    assert found.select("start_ns", "thread", "operator_ns", "operator_thread").rows() == [(50, 5, 10, 1)]
    assert starters(ranges, TABLES["collectives"].empty()).height == 0


@pytest.mark.parametrize(
    ("sent", "received", "size", "agrees"),
    [
        (12, 12, 12, True),
        (None, 12, 12, True),
        (12, None, 12, True),
        (12, 10, 12, False),
        (10, 12, 10, False),
    ],
)
def test_a_size_that_one_side_of_a_message_lacks_contradicts_nothing(
    sent: int | None, received: int | None, size: int, agrees: bool
) -> None:
    rows = [
        call(0, 1, 10, 40, collective="send", peer=1, size_bytes=sent),
        call(1, 1, 20, 45, collective="recv", peer=0, size_bytes=received),
        call(0, 2, 50, 60, collective="send", peer=0),  # to itself
    ]
    found = DERIVED.get("messages").compute(frame("traffic", rows).with_columns(trace="rank"))
    columns = ("source", "target", "size_bytes", "agrees", "send_ns", "recv_ns", "transfer_ns")
    assert found.select(columns).rows() == [(0, 1, size, agrees, 30, 25, 25)]


def test_a_recorded_collective_spans_nodes_if_a_member_says_so() -> None:
    usual = {"time_from": "gpu", "collective": "all_reduce", "communicator": 7, "sequence": 1, "ranks": 4}
    sides = [(0, 1, 900, 64), (1, 2, 700, 96), (1, 2, 800, 32)]
    rows = [
        usual | {"communicator_rank": rank, "nodes": nodes, "time_ns": time, "size_bytes": size}
        for rank, nodes, time, size in sides
    ]
    records = pl.DataFrame([row | {"communicator_name": None} for row in rows]).cast(
        {"communicator_name": pl.String}
    )
    found = DERIVED.get("recorded_transfers").compute(records)
    columns = ("size", "size_bytes", "time_ns", "spans_nodes", "basis")
    assert found.select(columns).rows() == [(4, 96, 700, True, "upper bound")]
