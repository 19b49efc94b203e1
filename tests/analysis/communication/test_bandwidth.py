"""Bandwidth as nccl-tests defines it, on wait-free time, and the Hockney fit."""

import statistics
from dataclasses import replace
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
    results,
    rewrite,
    tables,
)

from ccl_bench import metrics
from ccl_bench.analysis.communication.bandwidth import (
    RAW,
    SHORTER_SIDE,
    UPPER_BOUND,
    WAIT_FREE,
    HockneyFit,
    fit_hockney,
    outlying,
)
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.catalog.collectives import bus_factor
from ccl_bench.schema import TABLES as RAW_TABLES
from ccl_bench.testing import Message, Plan, Straggler, plans, trace_path, write_run

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


def test_dimensions_are_distinguished_by_the_nodes_they_cross_with_the_share_of_their_link(tmp_path: Path):
    write_run(PLAN, tmp_path)
    # the card states [200, 2400] Gbit/s: 25 GB/s between nodes (dp_shard), 300 inside one (tp)
    expected = {
        "allgather": ("dp_shard", "between nodes", 8_000_000 / 80_000 / 2, 25),
        "reducescatter": ("dp_shard", "between nodes", 4_000_000 / 50_000 / 2, 25),
        "allreduce": ("tp", "inside a node", 2 * 4_194_304 / 60_000, 300),
    }
    several = results(tmp_path, *(f"bandwidth_utilization_{kind}" for kind in expected))
    for found, (dimension, reach, bus, link) in zip(several, expected.values(), strict=True):
        [one] = found.details["by_dimension"]
        assert (one["dimension"], one["reach"], one["group_size"]) == (dimension, reach, 2)
        assert found.value == pytest.approx(bus)
        assert one["bus_bandwidth_gb_per_s"] == pytest.approx(bus)
        assert (
            found.details["share_of_link_pct"] == one["share_of_link_pct"] == pytest.approx(100 * bus / link)
        )


def bandwidth(kind: str, rows: list[dict[str, Any]], **known: Any) -> Any:
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
        "between nodes": {
            "algorithm_bandwidth_gb_per_s": 50.0,
            "bus_bandwidth_gb_per_s": 50.0,
            "share_of_link_pct": 50.0,
        },
        "inside a node": {
            "algorithm_bandwidth_gb_per_s": 100.0,
            "bus_bandwidth_gb_per_s": 100.0,
            "share_of_link_pct": 50.0,
        },
        "unknown": {"algorithm_bandwidth_gb_per_s": 10.0, "bus_bandwidth_gb_per_s": 10.0},
    }


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


def test_the_fit_is_the_line_of_least_squares():
    sizes, times = [1_000, 2_000, 2_000, 50_000], [5e-6, 5.5e-6, 5.7e-6, 21e-6]
    found = fit_hockney(sizes, times)
    line = statistics.linear_regression(sizes, times)
    assert found is not None
    assert (found.alpha_s, found.beta_s_per_byte) == pytest.approx((line.intercept, line.slope))
    assert found.r_squared == pytest.approx(statistics.correlation(sizes, times) ** 2)
    assert (found.points, found.sizes) == (4, 3)


def test_a_line_goes_through_two_sizes_exactly_and_not_through_one():
    found = fit_hockney([1000, 3000], [2e-6, 4e-6])
    assert found is not None
    assert (found.alpha_s, found.beta_s_per_byte, found.r_squared) == pytest.approx((1e-6, 1e-9, 1))
    assert fit_hockney([1000, 1000], [2e-6, 4e-6]) is None


def test_latency_and_inverse_bandwidth_of_a_run_are_those_of_its_transfers(tmp_path: Path):
    # 4 MB in 42 us, 8 MB in 55 and 8.4 MB in 60: nearly on one line
    plan = replace(
        PLAN, all_gather=Message(4_000_000, 55_000), reduce_scatter=Message(1_000_000, 42_000, "Float")
    )
    expected = write_run(plan, tmp_path)
    points = [
        (operation.bytes(min(operation.members)), operation.transfer_ns / 1e9)
        for operation in expected.operations
    ]
    assert {size for size, _ in points} == {8_000_000, 4_000_000, 8_388_608}
    line = statistics.linear_regression([size for size, _ in points], [seconds for _, seconds in points])
    alpha, beta = results(tmp_path, "hockney_alpha", "hockney_beta")
    assert alpha.value == pytest.approx(line.intercept)
    assert beta.value == pytest.approx(line.slope)
    assert beta.details["calls_count"] == len(points)


SIZES = [1_000_000, 2_000_000, 4_000_000, 8_000_000]


@pytest.mark.parametrize(
    ("times_ns", "reason"),
    [
        ([40_000, 90_000, 30_000, 65_000], "message size explains less than half of the differences in time"),
        ([80_000, 60_000, 40_000, 20_000], "larger messages did not take longer"),
        ([1_000, 5_000, 20_000, 80_000], "the fit gives a negative latency of -"),
    ],
)
def test_latency_and_inverse_bandwidth_are_refused_together(times_ns: list[int], reason: str):
    rows = frame("transfers", [transfer(size, time) for size, time in zip(SIZES, times_ns, strict=True)])
    for name in ("hockney_alpha", "hockney_beta"):
        with pytest.raises(NotMeasurable, match=reason):
            metrics.load().get(name).compute(rows)


GATHER = "_allgather_base"


def with_early_call(path: Path, length_us: float) -> None:
    """Add to a trace, before its first event, an all-gather on the stream of the others."""

    def change(trace: dict[str, Any]) -> None:
        kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
        calls = [e for e in kernels if e["args"].get("Collective name") == GATHER]
        first = min(calls, key=lambda event: event["ts"])
        begin = min(e["ts"] for e in trace["traceEvents"] if "ts" in e)
        early = first | {"ts": begin - length_us - 100, "dur": length_us, "args": dict(first["args"])}
        early["args"] |= {"correlation": 999_999_999, "Seq": 0}
        trace["traceEvents"].append(early)

    rewrite(path, change)


def test_a_call_while_the_profiler_starts_counts_in_no_bandwidth(tmp_path: Path):
    # 4 ranks gather 16 MiB in 100 us in each step, and once in 17 s before the first one
    plan = replace(plans.late_rank(), dp_shard=4)
    write_run(plan, tmp_path)
    for rank in range(plan.world_size):
        with_early_call(trace_path(tmp_path, rank), 17_000_000)
    found = measured(tmp_path, "bandwidth_utilization_allgather")
    assert found.value == pytest.approx(16 * MIB / 100e-6 / 1e9 * 3 / 4)
    assert found.window == "calls of steps"


def test_a_call_that_takes_far_longer_than_others_of_its_size_is_a_finding():
    rows = [transfer(1000, 10) for _ in range(9)] + [transfer(1000, 1_000)]
    found = bandwidth("allreduce", rows)
    assert found.value == pytest.approx(10_000 / 1_090)
    assert found.details["median_bus_bandwidth_gb_per_s"] == 100
    [finding] = found.findings
    assert (finding.code, finding.count) == ("calls-outlying", 1)
    assert "1 of 10 calls of allreduce" in finding.message
    assert "the bandwidth would be 10.9 times as high" in finding.message  # 1090 / 100 ns
    assert not bandwidth("allreduce", [transfer(1000, 10), transfer(1000, 90), transfer(4000, 40)]).findings


@pytest.mark.parametrize(
    ("size", "factor", "severity"),
    [(4340, 1.0, "error"), (4340, 1.5, "error"), (900, 1.5, "warning"), (900, 1.0, None)],
)
def test_more_than_the_link_can_do_is_a_finding(size: int, factor: float, severity: str | None):
    # 800 Gbit/s are 100 GB/s; an all-reduce moves S itself at least, even where switches reduce
    rows = [transfer(size, 10, spans_nodes=False, bus_factor=factor)]
    found = bandwidth("allreduce", rows, scale_up_gbps=800.0)
    assert found.details["share_of_link_pct"] == pytest.approx(size / 10 * factor)
    assert [f.severity for f in found.findings] == ([severity] if severity else [])
    assert {f.code for f in found.findings} <= {"share-above-limit"}


def test_a_link_that_is_stated_too_slow_is_an_error_beside_the_number(tmp_path: Path):
    write_run(PLAN, tmp_path)
    for card in tmp_path.glob("*.y*ml"):
        card.write_text(card.read_text().replace("[200, 2400]", "[20, 240]"))
    found = measured(tmp_path, "bandwidth_utilization_allreduce")
    assert found.details["share_of_link_pct"] > 100
    assert ("share-above-limit", "error") in {(f.code, f.severity) for f in found.findings}


def test_messages_between_two_ranks_are_no_part_of_the_fit(tmp_path: Path):
    write_run(Plan(pp=2, microbatches=2, layers=1, steps=1), tmp_path)
    assert result(tmp_path, "hockney_alpha").status == "not_measurable"


def test_matched_calls_are_one_transfer_and_the_others_one_for_each_rank():
    rows = [call(0, 1, 0, 10), call(1, 1, 5, 10), call(2, 1, 0, 9, group="h", size=2)]
    together = matched(rows, group("g", 0, 1), group("h", 2, 3))
    traffic = frame("traffic", [row | {"size": 2, "dimension": "tp", "spans_nodes": False} for row in rows])
    none = frame("messages", [])
    found = DERIVED.get("transfers").compute(
        together, none, traffic, frame("groups", [group("g", 0, 1), group("h", 2, 3)])
    )
    assert found.select("basis", "time_ns", "size_bytes").rows() == [(WAIT_FREE, 5, 8), (RAW, 9, 8)]


@pytest.mark.parametrize(
    ("rows", "outliers"),
    [
        ([(1000, 10), (1000, 10), (1000, 100)], []),  # ten times the median of 10
        ([(1000, 10), (1000, 10), (1000, 101)], [(101, 10.0)]),
        ([(1000, 10), (1000, 101)], []),  # two calls show no usual time
        ([(1024, 10), (1024, 10), (2047, 101)], [(101, 10.0)]),
        ([(1024, 10), (1024, 10), (2048, 101)], []),  # from the next power of two on
    ],
)
def test_outliers_take_more_than_ten_times_as_long_as_at_least_two_others_of_their_size(
    rows: list[tuple[int, int]], outliers: list[tuple[int, float]]
):
    found = outlying(frame("transfers", [transfer(size, time) for size, time in rows]))
    assert found.select("time_ns", "usual_ns").rows() == outliers


@pytest.mark.parametrize(("others_ns", "codes"), [(800, ["calls-outlying"]), (801, [])])
def test_outliers_are_a_finding_if_their_excess_is_a_tenth_of_the_time(others_ns: int, codes: list[str]):
    # 110 ns are 100 more than usual, and all calls take 90 + 110 + 800 = 1,000 ns
    rows = [transfer(1000, 10)] * 9 + [transfer(1000, 110), transfer(4096, others_ns)]
    assert [finding.code for finding in bandwidth("allreduce", rows).findings] == codes


@pytest.mark.parametrize(
    ("changed", "is_moved"),
    [({}, True), ({"size_bytes": 0}, False), ({"size_bytes": 1}, True), ({"size": 1}, False),
     ({"size": None}, True), ({"end_ns": 0}, False), ({"end_ns": 1}, True), ({"step": None}, False)],
)  # fmt: skip
def test_only_calls_in_steps_that_moved_something_are_transfers(changed: dict[str, Any], is_moved: bool):
    row = call(0, 1, 0, 10) | {"size": 2, "dimension": "tp", "spans_nodes": False, "step": 1} | changed
    nothing = frame("matched", []), frame("messages", [])
    found = DERIVED.get("transfers").compute(*nothing, frame("traffic", [row]), frame("groups", []))
    assert found.height == is_moved


def test_a_fit_is_no_model_below_half_of_the_variance_or_with_a_negative_latency():
    known = HockneyFit(alpha_s=0.0, beta_s_per_byte=1.0, r_squared=0.5, points=3, sizes=3)
    assert known.doubt == ""
    assert replace(known, alpha_s=-1e-9).doubt.startswith("the fit gives a negative latency")
    assert replace(known, r_squared=0.499).doubt.startswith("message size explains less than half")
    assert replace(known, beta_s_per_byte=0.0).doubt.startswith("larger messages did not take longer")


def test_equal_times_are_explained_whole():
    found = fit_hockney([1, 2, 3], [5.0, 5.0, 5.0])
    assert found is not None
    assert (found.alpha_s, found.beta_s_per_byte, found.r_squared, found.points, found.sizes) == (
        5,
        0,
        1,
        3,
        3,
    )


def record(**changed: Any) -> dict[str, Any]:
    """Return an all-reduce of two ranks on two nodes, as one rank's NCCL Inspector wrote it."""
    known = {"communicator": "c", "collective": "all_reduce", "sequence": 1, "ranks": 2, "nodes": 2}
    known |= {"size_bytes": 64, "time_ns": 10, "communicator_name": "tp", "communicator_rank": 0}
    return known | {"time_from": "kernel_gpu"} | changed


@pytest.mark.parametrize(
    ("records", "rows"),
    [
        ([record(), record(communicator_rank=1, time_ns=7)], [(WAIT_FREE, 7, 2, True, "tp")]),
        (
            [record(ranks=3), record(ranks=3, communicator_rank=1, time_ns=7)],
            [(UPPER_BOUND, 7, 3, True, "tp")],
        ),
        ([record()], [(RAW, 10, 2, True, "tp")]),
        ([record(nodes=1)], [(RAW, 10, 2, False, "tp")]),
        ([record(communicator_name=None)], [(RAW, 10, 2, True, "unknown")]),
        ([record(collective="send", ranks=4)], [(RAW, 10, 2, None, "tp")]),
        ([record(collective="send", ranks=4, nodes=1)], [(RAW, 10, 2, False, "tp")]),
        ([record(time_from="collective_cpu")], []),
        ([record(size_bytes=0)], []),
        ([record(size_bytes=1, time_ns=1)], [(RAW, 1, 2, True, "tp")]),
        ([record(time_ns=0)], []),
        ([record(ranks=1, nodes=1)], []),
    ],
)
def test_records_of_the_inspector_are_free_of_waiting_if_all_ranks_have_them(
    records: list[dict[str, Any]], rows: list[tuple[Any, ...]]
):
    table = RAW_TABLES["nccl_records"]
    columns = {name: [each.get(name) for each in records] for name in table.columns}
    found = DERIVED.get("recorded_transfers").compute(table.frame(columns))
    assert found.select("basis", "time_ns", "size", "spans_nodes", "dimension").rows() == rows
