"""What is not known of traffic is no zero and wins nothing: few unknowns are a finding, many a refusal."""

import random
from typing import Any

import pytest
from cross_runs import frame

from ccl_bench import metrics
from ccl_bench.analysis.facts import Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement

SIZED = ("traffic_distribution", "traffic_distribution_16", "collective_volume_allreduce")


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    """Return calls of 10 ns each, 20 ns apart, in one step of rank 0."""
    usual = {"trace": 0, "rank": 0, "step": 1, "collective": "all_reduce", "dimension": "tp", "size_bytes": 8}
    return [usual | {"start_ns": 20 * n, "end_ns": 20 * n + 10} | more for n in range(count)]


def computed(metric: str, calls: list[dict[str, Any]], **more: list[dict[str, Any]]) -> Measurement:
    tables: dict[str, Any] = {
        "facts": Facts(),
        "traffic": frame("traffic", calls),
        "steps": frame("steps", more.get("steps", [{"trace": 0, "rank": 0, "step": 1}])),
        "exposed_calls": frame("exposed_calls", more.get("exposed_calls", [])),
    }
    tables |= {"call_parts": frame("call_parts", more["call_parts"])} if "call_parts" in more else {}
    found = metrics.load().get(metric)
    return found.compute(*(tables[need] for need in (*found.needs, *found.explained_by) if need in tables))


@pytest.mark.parametrize("metric", SIZED)
def test_a_volume_of_which_73_of_74_sizes_are_unknown_is_refused(metric: str):
    calls = [*rows(73, size_bytes=None), *rows(1, dimension="world", size_bytes=4)]
    with pytest.raises(NotMeasurable, match=r"73 of 74 calls of .* have no recorded size"):
        computed(metric, calls)


@pytest.mark.parametrize("metric", SIZED)
def test_a_few_unknown_calls_that_take_most_of_the_time_are_refused(metric: str):
    calls = [*rows(9), *rows(1, size_bytes=None, end_ns=10_000)]
    with pytest.raises(NotMeasurable, match="1 of 10 calls"):
        computed(metric, calls)


def test_barriers_are_no_calls_of_unknown_size():
    calls = [*rows(2), *rows(9, collective="barrier", size_bytes=None)]
    assert computed("traffic_distribution_16", calls).value == pytest.approx(16 / 1e9)


def test_a_dimension_or_collective_without_any_size_has_no_bytes_instead_of_none():
    calls = [*rows(5), *rows(2, dimension="dp", collective="all_gather", size_bytes=None)]
    shares = computed("traffic_distribution", calls).details["per_dimension"]
    assert (shares["tp"]["share_pct"], shares["dp"]["share_pct"]) == (100, None)
    assert shares["dp"]["bytes_per_gpu_and_step"] is None
    volumes = computed("traffic_distribution_16", calls).details
    assert volumes["per_collective_gb"] == {"all_reduce": pytest.approx(40 / 1e9)}
    assert volumes["per_collective_calls"] == {"all_reduce": 5, "all_gather": 2}


def test_the_unknown_dimension_is_not_the_busiest():
    few = [*rows(3, dimension="tp"), *rows(2, dimension="dp"), *rows(1, dimension="unknown")]
    found = computed("traffic_distribution", few)
    assert (found.value, found.details["busiest"]) == (pytest.approx(100 * 3 / 6), "tp")
    assert [(f.code, f.count) for f in found.findings] == [("dimension-unknown", 1)]
    many = [*rows(3, dimension="tp"), *rows(2, dimension="dp"), *rows(4, dimension="unknown")]
    with pytest.raises(NotMeasurable, match=r"44.4 % of the bytes are in groups"):
        computed("traffic_distribution", many)


def test_times_of_a_dimension_are_a_rank_s_and_a_step_s_and_what_it_lacks_is_nothing():
    # two steps: tp communicates from 0 to 10 and 5 to 25, of which 4 ns are exposed; dp from 30 to 40
    calls = [
        {"call": 1, "dimension": "tp", "start_ns": 0, "end_ns": 10},
        {"call": 2, "dimension": "tp", "start_ns": 5, "end_ns": 25, "step": 2},
        {"call": 3, "dimension": "dp", "start_ns": 30, "end_ns": 40, "step": 2},
    ]
    parts = [
        {"trace": 0, "call": call, "dimension": "tp", "start_ns": start, "end_ns": end, "part": part}
        for call, start, end, part in ((1, 0, 6, "waiting"), (1, 6, 10, "transfer"), (2, 10, 25, "transfer"))
    ]
    found = computed(
        "traffic_distribution",
        [rows(1)[0] | call for call in calls],
        steps=[{"trace": 0, "rank": 0, "step": 1}, {"trace": 0, "rank": 0, "step": 2}],
        exposed_calls=[{"trace": 0, "rank": 0, "step": 2, "call": 2, "start_ns": 21, "end_ns": 25}],
        call_parts=parts,
    ).details["per_dimension"]
    ns = pytest.approx
    assert found["tp"]["time_s_per_gpu_and_step"] == ns(25 / 2 / 1e9)
    assert found["tp"]["exposed_s_per_gpu_and_step"] == ns(4 / 2 / 1e9)
    assert found["tp"]["parts_s_per_gpu_and_step"] == {
        "waiting": ns(6 / 2 / 1e9), "transfer": ns(19 / 2 / 1e9), "unknown": 0,
    }  # fmt: skip
    assert found["dp"]["time_s_per_gpu_and_step"] == ns(10 / 2 / 1e9)
    assert found["dp"]["exposed_s_per_gpu_and_step"] == 0
    assert "parts_s_per_gpu_and_step" not in found["dp"]


def test_calls_of_unknown_dimension_begin_no_window():
    # tp 0 to 10, unknown 12 to 14, dp 20 to 30: the gap from tp to dp is 10 ns
    calls = [
        {"dimension": "tp", "start_ns": 0, "end_ns": 10},
        {"dimension": "unknown", "start_ns": 12, "end_ns": 14},
        {"dimension": "dp", "start_ns": 20, "end_ns": 30},
    ]
    found = computed("traffic_window", [rows(1)[0] | call for call in calls])
    assert found.value == pytest.approx(10 / 1e9)
    assert set(found.details["per_dimension"]) == {"tp", "dp"}
    assert [finding.code for finding in found.findings] == ["dimension-unknown"]


def test_where_most_calls_are_of_unknown_dimension_there_are_no_windows():
    calls = [*rows(2, dimension="tp"), *rows(3, dimension="unknown")]
    with pytest.raises(NotMeasurable, match="3 of 5 calls have an unknown"):
        computed("traffic_window", calls)


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_those_of_a_plain_count_or_refused(seed: int):
    draw = random.Random(seed)
    calls = [
        call
        | {
            "dimension": draw.choice(["tp", "dp", "pp", "unknown"]),
            "size_bytes": draw.choice([None, draw.randrange(1, 100), 50]),
        }
        for call in rows(draw.randrange(4, 12))
    ]
    unsized = sum(call["size_bytes"] is None for call in calls)
    sums: dict[str, int] = {}
    for call in calls:
        sums[call["dimension"]] = sums.get(call["dimension"], 0) + (call["size_bytes"] or 0)
    vague = sums.pop("unknown", 0)
    best = max(sums.values(), default=0)
    if 2 * unsized > len(calls) or vague >= best:
        with pytest.raises(NotMeasurable):
            computed("traffic_distribution", calls)
    else:
        found = computed("traffic_distribution", calls)
        assert found.value == pytest.approx(100 * best / (sum(sums.values()) + vague))


def test_a_window_without_any_size_has_no_bytes():
    calls = [*rows(1, dimension="tp", size_bytes=None), *rows(2, dimension="dp")[1:]]
    found = computed("traffic_window", calls).details["per_dimension"]
    assert (found["tp"]["total_bytes"], found["dp"]["total_bytes"]) == (None, 8)
