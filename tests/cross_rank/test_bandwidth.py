"""Bandwidth as nccl-tests defines it, on wait-free time, and the Hockney fit."""

import statistics
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cross_runs import (
    call,
    documents,
    facts,
    frame,
    group,
    matched,
    measured,
    result,
    rewrite,
    tables,
)

from ccl_bench.analysis.bandwidth import RAW, SHORTER_SIDE, UPPER_BOUND, WAIT_FREE
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.hockney import fitted
from ccl_bench.catalog.collectives import bus_factor
from ccl_bench.testing import Experts, Message, Plan, Straggler, plans, trace_path, write_run

MIB = 2**20


def test_the_worked_value_comes_out_of_a_run_in_which_a_rank_is_late(tmp_path: Path):
    # 8 ranks gather 2 MiB of bf16 each, 16 MiB together, in 100 us; rank 3 comes 50 us late
    write_run(plans.late_rank(), tmp_path)
    found = measured(tmp_path, "bandwidth_utilization_allgather")
    assert found.details["algorithm_bandwidth_gb_per_s"] == pytest.approx(16 * MIB / 100e-6 / 1e9)
    assert found.value == pytest.approx(16 * MIB / 100e-6 / 1e9 * 7 / 8)
    assert (f"{found.details['algorithm_bandwidth_gb_per_s']:.2f}", f"{found.value:.2f}") == (
        "167.77",
        "146.80",
    )
    assert found.details["basis"] == WAIT_FREE


def lines(path: Path) -> list[list[float]]:
    """Return size, time, algbw and busbw of both halves of each line of an nccl-tests table with a size."""
    rows = [
        line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")
    ]
    halves = [[row[0], *row[start : start + 3]] for row in rows for start in (5, 9)]
    return [[float(value) for value in half] for half in halves if int(half[0])]


TABLES = {
    "all_reduce": ("all_reduce.txt", "quiet/all_reduce.txt"),
    "all_gather": ("quiet/all_gather.txt",),
    "reduce_scatter": ("quiet/reduce_scatter.txt",),
}


@pytest.mark.parametrize("collective", TABLES)
def test_tables_of_nccl_tests_come_out_of_size_and_time(collective: str, corpus: Path):
    rows = [row for name in TABLES[collective] for row in lines(corpus / "nccl-tests" / "results" / name)]
    assert len(rows) > 50
    for size, time, algorithm, bus in rows:
        # times are printed to four digits and bandwidths come from the unrounded ones: both ends of that
        half = 0.5 * 10 ** -(2 if time < 1000 else 1 if time < 10_000 else 0)
        slowest, fastest = (size / (time + sign * half) / 1e3 for sign in (1, -1))
        factor = bus_factor(collective, 4)
        assert slowest - 0.0051 <= algorithm <= fastest + 0.0051
        assert slowest * factor - 0.0051 <= bus <= fastest * factor + 0.0051


PLAN = Plan(
    dp_shard=2,
    tp=2,
    steps=2,
    layers=2,
    devices_per_node=2,
    all_gather=Message(4_000_000, 80_000),
    reduce_scatter=Message(1_000_000, 50_000, "Float"),
    stragglers=(Straggler(1, layer_ns=30_000),),
)


def test_dimensions_are_told_apart_by_the_nodes_they_cross_with_the_share_of_their_link(tmp_path: Path):
    write_run(PLAN, tmp_path)
    # the card states [200, 2400] Gbit/s: 25 GB/s between nodes, 300 GB/s inside one; tp is inside, dp_shard between
    expected = {
        "allgather": ("dp_shard", "between nodes", 8_000_000 / 80_000 / 2, 25),
        "reducescatter": ("dp_shard", "between nodes", 4_000_000 / 50_000 / 2, 25),
        "allreduce": ("tp", "inside a node", 2 * 4_194_304 / 60_000, 300),
    }
    for kind, (dimension, reach, bus, link) in expected.items():
        found = measured(tmp_path, f"bandwidth_utilization_{kind}")
        [one] = found.details["by_dimension"]
        assert (one["dimension"], one["reach"], one["group_size"]) == (dimension, reach, 2)
        assert found.value == pytest.approx(bus)
        assert one["bus_bandwidth_gb_per_s"] == pytest.approx(bus)
        assert (
            found.details["share_of_link_pct"] == one["share_of_link_pct"] == pytest.approx(100 * bus / link)
        )


def bandwidth(kind: str, rows: list[dict[str, Any]], **known: Any) -> Any:
    from ccl_bench import metrics

    return (
        metrics.load().get(f"bandwidth_utilization_{kind}").compute(frame("transfers", rows), facts(**known))
    )


def transfer(size: int, time: int, **more: Any) -> dict[str, Any]:
    usual = {"collective": "all_reduce", "dimension": "tp", "size": 2, "basis": WAIT_FREE, "bus_factor": 1.0}
    return usual | {"size_bytes": size, "time_ns": time} | more


def test_calls_inside_a_node_and_between_nodes_are_never_averaged():
    rows = [
        transfer(1000, 10, spans_nodes=False),
        transfer(3000, 60, spans_nodes=True),
        transfer(500, 50, spans_nodes=None),
    ]
    found = bandwidth("allreduce", rows, scale_up_gbps=1600.0, scale_out_gbps=800.0)
    assert (found.value, found.details["reach"]) == (3000 / 60, "between nodes")
    assert found.details["by_reach"] == {
        "between nodes": {"algorithm_bandwidth_gb_per_s": 50.0, "bus_bandwidth_gb_per_s": 50.0, "share_of_link_pct": 50.0},
        "inside a node": {"algorithm_bandwidth_gb_per_s": 100.0, "bus_bandwidth_gb_per_s": 100.0, "share_of_link_pct": 50.0},
        "unknown": {"algorithm_bandwidth_gb_per_s": 10.0, "bus_bandwidth_gb_per_s": 10.0},
    }  # fmt: skip


def test_times_free_of_waiting_are_never_averaged_with_others():
    rows = [transfer(1000, 10), transfer(9000, 900, basis=RAW), transfer(9000, 450, basis=UPPER_BOUND)]
    found = bandwidth("allreduce", rows)
    assert (found.value, found.details["basis"], found.details["calls_count"]) == (100, WAIT_FREE, 1)


def test_many_calls_give_total_bytes_over_total_time():
    found = bandwidth("allreduce", [transfer(1000, 10), transfer(1000, 40)])
    assert found.value == 2000 / 50
    assert found.details["by_size"] == [
        {
            "message_bytes": 1000,
            "calls_count": 2,
            "algorithm_bandwidth_gb_per_s": 40.0,
            "bus_bandwidth_gb_per_s": 40.0,
        }
    ]


def test_a_lone_rank_gives_raw_times_and_says_so(corpus: Path):
    folder = corpus / "kineto" / "nccl-args"
    [trace] = documents(folder).values()
    kernels = [
        e
        for e in trace["traceEvents"]
        if e.get("cat") == "kernel" and e["args"].get("Collective name") == "allreduce"
    ]
    moved = sum(event["args"]["In msg nelems"] * 4 for event in kernels)
    seconds = sum(event["dur"] for event in kernels) / 1e6
    found = measured(folder, "bandwidth_utilization_allreduce")
    assert found.details["basis"] == RAW
    assert found.value == pytest.approx(moved / seconds / 1e9 * bus_factor("all_reduce", 2), rel=1e-6)


def test_missing_members_make_bandwidth_an_upper_bound_of_the_time(tmp_path: Path):
    write_run(
        Plan(dp_shard=4, steps=1, missing_ranks=frozenset({3}), stragglers=(Straggler(3, 90_000),)), tmp_path
    )
    found = measured(tmp_path, "bandwidth_utilization_reducescatter")
    assert found.details["basis"] == UPPER_BOUND
    assert found.value <= 8_388_608 * 4 / 170_000 * 3 / 4


def test_a_message_between_two_ranks_counts_its_shorter_side(tmp_path: Path):
    write_run(Plan(pp=2, microbatches=3, layers=1, steps=1, pipeline=Message(4_000_000, 25_000)), tmp_path)
    rows = tables(tmp_path, "transfers")["transfers"].filter(pl.col("collective") == "send_recv")
    # three microbatches forward and three backward
    assert rows.select("basis", "size_bytes", "bus_factor").unique().rows() == [
        (SHORTER_SIDE, 8_000_000, 1.0)
    ]
    assert rows.height == 6
    assert rows["time_ns"].min() == 25_000
    found = measured(tmp_path, "bandwidth_utilization_p2p")
    assert found.value == pytest.approx(6 * 8_000_000 / rows["time_ns"].sum())


def test_an_uneven_all_to_all_counts_what_goes_to_others_and_keeps_its_waiting(tmp_path: Path):
    expected = write_run(plans.uneven_experts(), tmp_path)
    rows = tables(tmp_path, "transfers")["transfers"].filter(pl.col("collective") == "all_to_all")
    assert set(rows["basis"]) == {RAW}
    assert set(rows["bus_factor"]) == {1.0}
    exchanges = [meeting for meeting in expected.meetings if meeting.collective == "all_to_allv"]
    moved = sorted(meeting.bytes(rank) for meeting in exchanges for rank in meeting.members)
    assert sorted(rows["size_bytes"].to_list()) == moved
    # row of rank 0: 50 stay, 25, 225 and 100 go; 100 rows come, 25 from itself and each other: 2048 bytes a row
    assert max(moved) == max(3 * 225, 25 + 50 + 100) * 2048


def test_a_rank_that_sends_no_token_has_a_size_and_breaks_nothing(tmp_path: Path):
    plan = Plan(dp_shard=2, ep=2, steps=1, layers=1, experts=Experts(((0, 0), (5, 3))))
    expected = write_run(plan, tmp_path)
    rows = tables(tmp_path, "traffic")["traffic"].filter(pl.col("collective") == "all_to_all")
    moved = [
        meeting.bytes(rank)
        for meeting in expected.meetings
        if meeting.dimension == "ep"
        for rank in meeting.members
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
    assert result(tmp_path, "traffic_distribution").status == "not_measurable"
    assert result(tmp_path, "bandwidth_utilization_allgather").status == "not_measurable"


def test_one_side_of_a_collective_gives_the_whole_message():
    from ccl_bench.analysis.message_size import with_sizes

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
    types = {"in_split": pl.List(pl.Int64), "out_split": pl.List(pl.Int64), "own_position": pl.Int64, "group_size": pl.Int64,
             "in_elements": pl.Int64, "out_elements": pl.Int64}  # fmt: skip
    found = with_sizes(pl.DataFrame(columns, schema_overrides=types))
    assert found["size_bytes"].to_list() == [160, 160, 160, 160, 40]


def test_the_fit_is_the_line_of_least_squares():
    sizes, times = [1_000, 2_000, 2_000, 50_000], [5e-6, 5.5e-6, 5.7e-6, 21e-6]
    found = fitted(sizes, times)
    line = statistics.linear_regression(sizes, times)
    assert found is not None
    assert (found.alpha_s, found.beta_s_per_byte) == pytest.approx((line.intercept, line.slope))
    assert found.r_squared == pytest.approx(statistics.correlation(sizes, times) ** 2)
    assert (found.points, found.sizes) == (4, 3)


def test_a_line_goes_through_two_sizes_exactly_and_not_through_one():
    found = fitted([1000, 3000], [2e-6, 4e-6])
    assert found is not None
    assert (found.alpha_s, found.beta_s_per_byte, found.r_squared) == pytest.approx((1e-6, 1e-9, 1))
    assert fitted([1000, 1000], [2e-6, 4e-6]) is None


def test_latency_and_inverse_bandwidth_of_a_run_are_those_of_its_transfers(tmp_path: Path):
    expected = write_run(PLAN, tmp_path)
    points = [
        (meeting.bytes(min(meeting.members)), meeting.transfer_ns / 1e9) for meeting in expected.meetings
    ]
    assert {size for size, _ in points} == {8_000_000, 4_000_000, 8_388_608}
    line = statistics.linear_regression([size for size, _ in points], [seconds for _, seconds in points])
    assert measured(tmp_path, "hockney_alpha").value == pytest.approx(line.intercept)
    beta = measured(tmp_path, "hockney_beta")
    assert beta.value == pytest.approx(line.slope)
    assert beta.details["calls_count"] == len(points)


def test_messages_between_two_ranks_are_no_part_of_the_fit(tmp_path: Path):
    write_run(Plan(pp=2, microbatches=2, layers=1, steps=1), tmp_path)
    assert result(tmp_path, "hockney_alpha").status == "not_measurable"


def test_the_matrix_holds_messages_and_parts_of_all_to_alls(tmp_path: Path):
    tokens = ((3, 5), (7, 1))
    plan = Plan(
        dp_shard=2, ep=2, pp=2, microbatches=2, layers=1, steps=1, experts=Experts(tokens, hidden_size=8)
    )
    write_run(plan, tmp_path)
    found = tables(tmp_path, "traffic_matrix")["traffic_matrix"]
    by_kind = {(r["source"], r["target"], r["kind"]): (r["calls"], r["bytes"]) for r in found.to_dicts()}
    # ranks 0 and 1 are stage 0, 2 and 3 stage 1: two microbatches each way of 4194304 bf16 elements
    messages = {(a, b): (2, 2 * 4_194_304 * 2) for a, b in ((0, 2), (1, 3), (2, 0), (3, 1))}
    assert {pair[:2]: value for pair, value in by_kind.items() if pair[2] == "message"} == messages
    # dispatch sends 5 rows from place 0 to 1 and 7 back, combine returns them, both again backwards: 16 bytes a row
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
        (0, 1, 8, True), (0, 1, 16, True),
    ]  # fmt: skip


def test_a_message_whose_ends_contradict_each_other_is_said_to():
    from ccl_bench.analysis.agreement import cross_rank_findings

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
    assert [finding.code for finding in cross_rank_findings({"messages": found})] == ["messages-disagree"]


def test_matched_calls_are_one_transfer_and_the_others_one_for_each_rank():
    rows = [call(0, 1, 0, 10), call(1, 1, 5, 10), call(2, 1, 0, 9, group="h", size=2)]
    together = matched(rows, group("g", 0, 1), group("h", 2, 3))
    traffic = frame("traffic", [row | {"size": 2, "dimension": "tp", "spans_nodes": False} for row in rows])
    none = frame("messages", [])
    found = DERIVED.get("transfers").compute(
        together, none, traffic, frame("groups", [group("g", 0, 1), group("h", 2, 3)])
    )
    assert found.select("basis", "time_ns", "size_bytes").rows() == [(WAIT_FREE, 5, 8), (RAW, 9, 8)]


def test_calls_without_size_are_listed_and_not_counted_as_nothing(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1, layers=1), tmp_path)

    def silent(trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"]:
            if (arguments := event.get("args", {})).get("Collective name") == "_allgather_base":
                del arguments["In msg nelems"], arguments["Out msg nelems"]

    for rank in (0, 1):
        rewrite(trace_path(tmp_path, rank), silent)
    found = measured(tmp_path, "traffic_distribution_16")
    gathers = tables(tmp_path, "traffic")["traffic"].filter(pl.col("collective") == "all_gather").height
    assert found.details["unattributed_calls_count"] == gathers
    assert found.value == pytest.approx(8_388_608 * 4 / 1e9)
    assert [finding.code for finding in found.findings] == ["calls-without-size"]
