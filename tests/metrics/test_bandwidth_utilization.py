"""`bandwidth_utilization_*` on a table of calls that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench import metrics
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.bandwidth_utilization import KINDS, title_of
from ccl_bench.metrics.nccl_tests_efficiency import nccl_tests_efficiency
from ccl_bench.side_files.nccl_tests import Measured, NcclTests

TYPES = {
    "iteration": pl.Int64, "step": pl.Int64, "size": pl.Int64, "spans_nodes": pl.Boolean,
    "bus_factor": pl.Float64,
}  # fmt: skip
LINKS = Facts(scale_up_gbps=Fact(1600.0, "card"), scale_out_gbps=Fact(1440.0, "card"))
"""200 and 180 GB/s."""


def call(size_bytes: int, time_ns: int, **more: Any) -> dict[str, Any]:
    """Return an all-reduce over four ranks of one node, whose bus bandwidth is 1.5 times the other."""
    row = {"iteration": None, "step": 1, "collective": "all_reduce", "dimension": "tp", "size": 4}
    row |= {"spans_nodes": False, "size_bytes": size_bytes, "time_ns": time_ns, "basis": "wait-free"}
    return row | {"bus_factor": 1.5} | more


def measured(
    *calls: dict[str, Any],
    facts: Facts = LINKS,
    kind: str = "allreduce",
    source: int = 0,
    **tables: Any,
) -> Any:
    metric = metrics.load().get(f"bandwidth_utilization_{kind}").sources[source]
    return metric.compute(pl.DataFrame(calls, schema_overrides=TYPES), facts, **tables)


# inside a node 4,000 bytes in 60 ns, between nodes 3,000 in 100, and 500 in 10 where that is not known
CALLS = (
    call(3000, 100, spans_nodes=True, dimension="dp", size=2, step=3),
    call(1000, 10),
    call(1000, 30),
    call(2000, 20, step=2),
    call(500, 10, spans_nodes=None, dimension="unknown"),
    call(90_000, 9, basis="raw"),
    call(90_000, 9, bus_factor=None),
    call(90_000, 9, collective="all_gather"),
)
INSIDE = {
    "algorithm_bandwidth_gb_per_s": pytest.approx(4000 / 60),
    "bus_bandwidth_gb_per_s": pytest.approx(100),
    "share_of_link_pct": pytest.approx(50),
}
BETWEEN = {
    "algorithm_bandwidth_gb_per_s": pytest.approx(30),
    "bus_bandwidth_gb_per_s": pytest.approx(45),
    "share_of_link_pct": pytest.approx(25),
}
ELSEWHERE = {
    "algorithm_bandwidth_gb_per_s": pytest.approx(50),
    "bus_bandwidth_gb_per_s": pytest.approx(75),
}


def test_the_value_is_of_the_reach_with_most_bytes_and_each_has_its_own_link() -> None:
    found = measured(*CALLS)
    assert (found.value, found.findings) == (pytest.approx(100), [])
    assert found.details == {
        "basis": "wait-free",
        "reach": "inside a node",
        **INSIDE,
        "median_bus_bandwidth_gb_per_s": pytest.approx(150),  # 150, 50 and 150
        "calls_count": 3,
        "total_bytes": 4000,
        "by_reach": {"inside a node": INSIDE, "between nodes": BETWEEN, "unknown": ELSEWHERE},
        "by_dimension": [
            {"dimension": "dp", "group_size": 2, "reach": "between nodes", "calls_count": 1}
            | {"mean_message_bytes": 3000, **BETWEEN},
            {"dimension": "tp", "group_size": 4, "reach": "inside a node", "calls_count": 3}
            | {"mean_message_bytes": pytest.approx(4000 / 3), **INSIDE},
            {"dimension": "unknown", "group_size": 4, "reach": "unknown", "calls_count": 1}
            | {"mean_message_bytes": 500, **ELSEWHERE},
        ],
        "by_size": [
            {"message_bytes": size, "calls_count": count, "bus_bandwidth_gb_per_s": pytest.approx(1.5 * rate)}
            | {"algorithm_bandwidth_gb_per_s": pytest.approx(rate)}
            for size, count, rate in ((1000, 2, 50), (2000, 1, 100))
        ],
        "per_step_gb_per_s": pytest.approx({"1": 75, "2": 150}),
    }
    assert [*found.details["by_reach"]] == ["inside a node", "between nodes", "unknown"]


def test_of_the_calls_of_an_unknown_reach_the_value_is_theirs_if_they_move_most() -> None:
    found = measured(call(100, 10), call(4000, 20, spans_nodes=None), call(4000, 60, spans_nodes=None))
    assert (found.details["reach"], found.details["calls_count"]) == ("unknown", 2)
    assert found.value == pytest.approx(1.5 * 8000 / 80)
    assert "share_of_link_pct" not in found.details


def test_records_of_the_inspector_give_the_same_numbers_and_say_so() -> None:
    found = measured(*CALLS, source=1)
    assert found.details == measured(*CALLS).details
    assert [finding.code for finding in found.findings] == ["other-source"]


TEST = (Measured("all_reduce", 4, 1, 1000, 8e-9), Measured("all_reduce", 4, 1, 2000, 15e-9))


def test_the_efficiency_is_stated_where_the_test_measured_every_call() -> None:
    def ratios(found: Any) -> list[Any]:
        name = "nccl_tests_efficiency_ratio"
        return [each.get(name) for each in (found.details, *found.details["by_size"])]

    # 8 ns for each of two calls and 15 for the third, which took 10, 30 and 20
    whole = measured(*CALLS, nccl_tests=NcclTests(TEST))
    assert ratios(whole) == [pytest.approx(each) for each in (31 / 60, 16 / 40, 15 / 20)]
    assert ratios(measured(*CALLS, nccl_tests=NcclTests(TEST[:1]))) == [None, pytest.approx(0.4), None]
    recorded = measured(*CALLS, nccl_tests=NcclTests(TEST), source=1)
    assert ratios(recorded) == ratios(whole)
    assert ratios(measured(*CALLS)) == [None, None, None]


@pytest.mark.parametrize(
    ("time_ns", "factor", "codes"),
    [
        (15, 1.5, []),  # 100 GB/s, all of the link
        (14, 1.5, ["warning"]),  # 107 GB/s, of which switches that reduce may save a third
        (10, 1.5, ["warning"]),  # 150 and 100 GB/s, which is all of the link
        (9, 1.5, ["error"]),  # 111 GB/s and no switch can help
        (7, 0.75, ["error"]),  # 107 GB/s, fewer than the algorithm bandwidth of 143
    ],
)
def test_calls_faster_than_the_link_are_doubtful(time_ns: int, factor: float, codes: list[str]) -> None:
    slow = call(500, 100, dimension="dp")  # of another dimension, which has most calls
    others = [call(9000, 900, spans_nodes=True)] * 2
    link = Facts(scale_up_gbps=Fact(800.0, "card"), scale_out_gbps=Fact(8000.0, "card"))
    found = measured(*others, slow, slow, call(1000, time_ns, bus_factor=factor), facts=link)
    assert [finding.severity for finding in found.findings] == codes
    assert {finding.code for finding in found.findings} <= {"share-above-limit"}
    assert measured(*others, call(1000, time_ns), facts=Facts()).findings == []


@pytest.mark.parametrize(("other_ns", "is_doubtful"), [(870, True), (871, False)])
def test_calls_that_take_ten_times_as_long_count_from_a_tenth_of_the_time(
    other_ns: int, is_doubtful: bool
) -> None:
    # 10, 10 and 110 ns: 100 more than usual, of 1,000 ns in all
    alike = [call(1000, 10), call(1000, 10), call(1000, 110)]
    found = measured(*alike, call(90_000, other_ns), facts=Facts())
    assert [(finding.code, finding.count) for finding in found.findings] == (
        [("calls-outlying", 1)] if is_doubtful else []
    )
    if is_doubtful:
        message = found.findings[0].message
        assert "1 of 4 calls" in message
        assert "up to 1.1e-07 s" in message
        assert "1.111 times" in message


def test_several_calls_that_take_far_longer_are_one_finding() -> None:
    # 190 and 290 ns more than usual, of 540: without them the same bytes take 60
    found = measured(*[call(1000, 10)] * 4, call(1000, 200), call(1000, 300), facts=Facts())
    (finding,) = found.findings
    assert finding.count == 2
    assert "up to 3e-07 s" in finding.message
    assert "9 times" in finding.message


STEPS = pl.DataFrame({"trace": [0, 0, 1], "rank": [0, 0, 1], "step": [1, 2, 1]})


def test_the_time_of_the_kind_is_divided_into_its_parts() -> None:
    part = {"trace": 0, "rank": 0, "step": 1, "collective": "all_reduce", "part": "waiting", "time_ns": 60}
    parts = pl.DataFrame(
        [
            part, part | {"step": 2, "time_ns": 20}, part | {"trace": 1, "rank": 1, "time_ns": 10},
            part | {"part": "transfer", "time_ns": 8}, part | {"collective": "all_gather"},
            part | {"step": 9}, part | {"trace": 1, "rank": 1, "part": "unknown", "time_ns": 6},
        ]
    )  # fmt: skip
    found = measured(*CALLS, collective_parts=parts, steps=STEPS)
    # a step of rank 0 has 40 ns of waiting and 4 of transfer, one of rank 1 has 10 and 6 that are unknown
    expected = {"waiting": 25e-9, "transfer": 2e-9, "unknown": 3e-9}
    assert found.details["time_parts_s"] == pytest.approx(expected)
    for lacking in ({"collective_parts": parts}, {"steps": STEPS}):
        assert "time_parts_s" not in measured(*CALLS, **lacking).details


@pytest.mark.parametrize(
    ("traffic", "reason"),
    [
        ([(1, "all_gather"), (None, "all_reduce")], "no such collective"),
        ([(1, "all_gather"), (2, "all_reduce")], "known size"),
        ([(None, "all_gather")], "no communication was recognised"),
        ([], "no communication was recognised"),
    ],
)
def test_steps_without_the_collective_differ_from_calls_without_a_size(
    traffic: list[tuple[int | None, str]], reason: str
) -> None:
    columns = {"step": pl.Int64, "collective": pl.String}
    table = pl.DataFrame(traffic, schema=columns, orient="row")
    steps = STEPS.with_columns(source=pl.lit("ProfilerStep"))
    with pytest.raises(NotMeasurable, match=reason):
        measured(call(1000, 10, bus_factor=None), traffic=table, steps=steps)


def test_the_manual_names_the_collective_or_the_two_ranks_of_a_message() -> None:
    titles = {kind: title_of(kind) for kind in KINDS}
    assert titles == {kind: names[0] for kind, names in KINDS.items()} | {"p2p": "messages between two ranks"}
    for family in ("bandwidth_utilization", "collective_volume"):
        for kind, title in titles.items():
            assert f" of {title}" in metrics.load().get(f"{family}_{kind}").summary


def test_the_efficiency_of_each_reach_is_listed_by_name() -> None:
    calls = [call(1000, 10, spans_nodes=spans) for spans in (False, True)]
    calls += [call(1000, 20, size=2, bus_factor=1.0, spans_nodes=spans) for spans in (None, False)]
    test = (*TEST, Measured("all_reduce", 4, 2, 1000, 5e-9), Measured("all_reduce", 2, None, 1000, 12e-9))
    found = nccl_tests_efficiency(pl.DataFrame(calls, schema_overrides=TYPES), NcclTests(test))
    for rows in (found.details["by_collective"], found.details["by_size"]):
        assert [(row["group_size"], row["reach"], row["efficiency_ratio"]) for row in rows] == [
            (2, "inside a node", pytest.approx(0.6)),
            (2, "unknown", pytest.approx(0.6)),
            (4, "inside a node", pytest.approx(0.8)),
            (4, "between nodes", pytest.approx(0.5)),
        ]
