"""What findings count and name, on tables small enough to follow by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from checking import findings_in

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.analysis.findings import differing_step_times, memory_beyond_device
from ccl_bench.analysis.steps.findings import common_steps, step_findings

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding

NUMBERS = ("iteration", "trace", "rank", "step", "size", "uneven", "peer", "size_bytes", "number")
GB = 1_000_000_000


def table(*records: dict[str, Any]) -> pl.DataFrame:
    """Return records; those of numbers may be unknown."""
    known = {name for record in records for name in record}
    types: dict[str, Any] = {name: pl.Int64 for name in NUMBERS if name in known}
    return pl.DataFrame(
        [*records], schema_overrides=types | ({"uneven": pl.Boolean} if "uneven" in known else {})
    )


def found(**tables: pl.DataFrame) -> list[tuple[str, int]]:
    return [(each.code, each.count) for each in findings_in(tables)]


def call(number: int, **changed: Any) -> dict[str, Any]:
    known = {"iteration": None, "group": "g", "number": number, "trace": 0, "rank": 0, "step": 1, "size": 2}
    return known | {"present": 2, "agrees": True, "gaps": 0, "lacks": 0, "uneven": False} | changed


def of_matched(*calls: dict[str, Any]) -> list[Finding]:
    return list(findings_in({"matched": table(*calls)}))


def test_matched_collectives_without_a_fault_need_no_word() -> None:
    assert of_matched(call(1), call(1, trace=1, rank=1), call(2)) == []


def test_collectives_that_differ_are_counted_once_each() -> None:
    both = [call(number, trace=rank, rank=rank, agrees=number < 3) for number in (2, 3, 4) for rank in (0, 1)]
    [finding] = of_matched(*both)
    assert (finding.code, finding.count) == ("collectives-disagree", 2)
    assert "first number 3 of group g" in finding.message


def test_collectives_that_lack_members_are_counted_once_each() -> None:
    both = [
        call(number, trace=rank, rank=rank, size=3 + number % 2, present=3)
        for number in (1, 2, 3)
        for rank in (0, 1)
    ]
    assert [(each.code, each.count) for each in of_matched(*both)] == [("members-missing", 2)]


@pytest.mark.parametrize(
    ("gaps", "count", "said"),
    [
        ((0, 0, 0), 0, ""),
        ((0, 2, 0), 1, "in 1 of 3 steps"),
        ((1, 2, 1), 3, "in 3 of 3 steps"),
    ],
)
def test_steps_in_which_traces_lack_collectives_are_counted(
    gaps: tuple[int, ...], count: int, said: str
) -> None:
    rows = [
        call(place, step=place, trace=rank, rank=rank, gaps=gap, lacks=gap * rank)
        for place, gap in enumerate(gaps)
        for rank in (0, 1, 2)
    ]
    findings = of_matched(*rows)
    assert [(each.code, each.count) for each in findings] == (
        [("collectives-lacking", count)] if count else []
    )
    for each in findings:
        assert each.message.startswith(said)
        assert "(ranks 1, 2)" in each.message
        assert ("the other 2" in each.message) is (count == 1)


def test_groups_without_members_are_counted_by_name() -> None:
    rows = [call(1, size=None), call(2, size=None), call(1, size=None, group="h", agrees=False)]
    finding, unmatched = of_matched(*rows)
    assert (finding.code, finding.count) == ("groups-assumed", 2)
    assert (unmatched.code, unmatched.count) == ("streams-unmatched", 1)
    assert "the calls of 1 do not match" in finding.message
    [plain] = of_matched(*rows[:2])
    assert "do not match" not in plain.message


def test_calls_whose_parts_may_be_uneven_are_counted() -> None:
    assert [(each.code, each.count) for each in of_matched(call(1, uneven=None), call(2))] == [
        ("splits-unknown", 1)
    ]


def test_doubts_about_groups_messages_arrivals_and_bubbles_are_counted() -> None:
    groups = table(
        {"group": "a", "ambiguous": True, "contradicts_mesh": False},
        {"group": "b", "ambiguous": False, "contradicts_mesh": True},
        {"group": "c", "ambiguous": True, "contradicts_mesh": True},
        {"group": "d", "ambiguous": False, "contradicts_mesh": False},
    )
    assert found(groups=groups) == [("groups-ambiguous", 2), ("mesh-contradicted", 2)]
    messages = [{"number": n, "source": 0, "target": 1, "agrees": n == 0} for n in range(3)]
    [finding] = findings_in({"messages": table(*messages)})
    assert (finding.code, finding.count) == ("messages-disagree", 2)
    assert "first number 1 from rank 0 to rank 1" in finding.message
    arrivals = pl.DataFrame({"order": [[0, 1], None, None]})
    assert found(arrivals=arrivals) == [("arrival-refused", 2)]
    assert found(bubbles=table({"unmatched": 3}, {"unmatched": 4})) == [("messages-unmatched", 7)]
    assert found(bubbles=table({"unmatched": 0})) == []


def traffic(collective: str, **changed: Any) -> dict[str, Any]:
    known = {"collective": collective, "rank": 0, "peer": None, "size_bytes": 8, "is_paired": True}
    return known | {"uneven": False} | changed


def test_doubts_about_single_calls_are_counted() -> None:
    rows = table(
        traffic("all_reduce"), traffic("all_reduce", size_bytes=None), traffic("all_gather", size_bytes=None),
        traffic("barrier", size_bytes=None), traffic("all_to_all", uneven=None),
        traffic("all_reduce", is_paired=False), traffic("send", peer=0), traffic("send", peer=1),
        traffic("recv", peer=None), traffic("recv", rank=1, peer=1),
    )  # fmt: skip
    findings = list(findings_in({"traffic": rows}))
    assert [(each.code, each.count) for each in findings] == [
        ("calls-without-size", 2), ("splits-unknown", 1), ("calls-unpaired", 1), ("message-to-self", 2),
        ("peers-unknown", 1),
    ]  # fmt: skip
    assert findings[0].message.startswith("2 of 10 communication calls")
    assert findings[-1].message.startswith("1 of 4 sends and receives")


@pytest.mark.parametrize(
    ("linked", "rate", "count"), [(96, 0.96, None), (95, 0.95, None), (94, 0.94, 6), (0, 0.0, 100)]
)
def test_execution_traces_that_are_not_found_whole_are_named(
    linked: int, rate: float, count: int | None
) -> None:
    links = table({"rank": 3, "nodes": 120, "ops": 100, "linked": linked, "rate": rate})
    assert found(et_links=links) == ([] if count is None else [("et-unlinked", count)])
    assert found(et_links=links.with_columns(ops=pl.lit(0))) == []


PEAKS = {"events": 5, "reserved_bytes": 8, "start_allocated_bytes": 0, "contradictions": 0, "ooms": 0}


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({}, []),
        ({"events": 0}, [("memory-history-missing", 2)]),
        ({"events": 0, "reserved_bytes": 0}, []),
        ({"start_allocated_bytes": 1}, [("memory-history-late", 2)]),
        ({"contradictions": 1}, [("memory-history-contradicts", 2)]),
        ({"ooms": 2}, [("memory-ran-out", 4)]),
    ],
)
def test_histories_of_memory_have_their_doubts(changed: dict[str, int], codes: list[tuple[str, int]]) -> None:
    peaks = table(PEAKS, PEAKS | changed, PEAKS | changed)
    assert [(each.code, each.count) for each in findings_in({"memory_peaks": peaks})] == codes
    late = table(
        PEAKS, PEAKS | {"start_allocated_bytes": 2 * GB}, PEAKS | {"start_allocated_bytes": 7 * GB // 2}
    )
    assert "3.5 GB" in findings_in({"memory_peaks": late})[0].message
    assert findings_in({"memory_peaks": peaks.clear()}) == findings_in({}) == []


@pytest.mark.parametrize(
    ("reserved", "facts", "codes"),
    [
        (80 * GB, Facts(), []),
        (80 * GB + 1, Facts(), ["memory-beyond-device"]),
        (60 * GB, Facts(gpu_hbm_bytes=Fact(60 * GB, "card")), []),
        (60 * GB + 1, Facts(gpu_hbm_bytes=Fact(60 * GB, "card")), ["memory-beyond-device"]),
    ],
)
def test_an_allocator_holds_no_more_than_the_largest_device(
    reserved: int, facts: Facts, codes: list[str]
) -> None:
    peaks = pl.DataFrame({"peak_reserved_bytes": [1, reserved, None]})
    devices = pl.DataFrame({"memory_bytes": [40 * GB, 80 * GB]})
    assert [each.code for each in memory_beyond_device(peaks, devices, facts)] == codes


@pytest.mark.parametrize(
    ("stated_ns", "codes"),
    [(1000, []), (953, []), (952, ["step-times-differ"]), (1053, ["step-times-differ"]), (1052, [])],
)
def test_step_times_of_two_sources_may_differ_by_a_twentieth(stated_ns: int, codes: list[str]) -> None:
    traced = {"iteration": None, "trace": 0, "rank": 0, "step": 1, "start_ns": 0, "end_ns": 1000}
    traced["length_ns"] = 1000
    stated = {"iteration": None, "rank": 0, "step": 1, "duration_ns": stated_ns, "source": "step_times.json"}
    steps = table(traced | {"source": "ProfilerStep"})
    assert [each.code for each in differing_step_times(table(stated), steps)] == codes
    assert differing_step_times(table(stated), table(traced | {"source": "whole trace"})) == []


def step(number: int, trace: int = 0, **changed: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"iteration": None, "trace": trace, "rank": trace, "step": number}
    known |= {"source": "ProfilerStep", "cuts_operator": False}
    start = changed.get("start_ns", 0)
    known |= {"start_ns": start, "end_ns": start + 100, "length_ns": 100}
    return known | {"calls": 4, "unlaunched": 0, "work": 100} | changed


@pytest.mark.parametrize(
    ("steps", "codes"),
    [
        ([step(1), step(2)], []),
        ([step(1, source="whole trace"), step(1, 1, source="whole trace")], [("steps-not-found", 2)]),
        ([step(1), step(2, calls=5), step(1, 1), step(2, 1)], [("steps-unequal", 1)]),
        ([step(1, calls=4), step(1, 1, calls=5)], []),
        ([step(1, unlaunched=1), step(2, unlaunched=1)], [("launches-missing", 2)]),
        ([step(1), step(2, start_ns=100), step(3, start_ns=200)], []),
        ([step(1, source="s"), step(3, source="s", start_ns=200), step(5, source="s", start_ns=400)], []),
        ([step(1), step(3, start_ns=200)], [("steps-skipped", 1)]),
        ([step(1), step(2, cuts_operator=True)], [("steps-amid-operators", 1)]),
        ([step(1, unlaunched=2), step(2, unlaunched=1)], [("launches-missing", 3)]),
    ],
)
def test_doubts_about_steps_are_counted(steps: list[dict[str, Any]], codes: list[tuple[str, int]]) -> None:
    assert [(each.code, each.count) for each in step_findings(table(*steps))] == codes


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((4, 5), "such as 4, 5:"),
        ((1, 2, 3, 4, 5), "such as 1, 2, 3, 4, 5:"),
        (tuple(range(9)), "such as 0, 1, 2, 3, ..., 8:"),
    ],
)
def test_unequal_counts_are_listed_up_to_five(counts: tuple[int, ...], said: str) -> None:
    [finding] = step_findings(table(*(step(place, calls=count) for place, count in enumerate(counts))))
    assert said in finding.message
    assert finding.message.startswith("steps of the trace of rank 0 ")


@pytest.mark.parametrize(
    ("steps", "kept", "codes"),
    [
        ([(0, 1), (0, 2), (1, 1), (1, 2)], {}, []),
        ([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)], {0: {2, 3}}, [("steps-differ", 1)]),
        ([(0, 1), (0, 2), (1, 2), (1, 3)], {0: {2}, 1: {2}}, [("steps-differ", 2)]),
        ([(0, 1), (1, 2)], {0: set(), 1: set()}, [("no-common-step", 1)]),
    ],
)
def test_steps_that_some_ranks_lack_are_left_out(
    steps: list[tuple[int, int]], kept: dict[int, set[int]], codes: list[tuple[str, int]]
) -> None:
    rows = table(*(step(number, trace) for trace, number in steps))
    left, findings = common_steps(rows)
    assert left == {trace: frozenset(numbers) for trace, numbers in kept.items()}
    assert [(each.code, each.count) for each in findings] == codes
    assert common_steps(rows, left_out=[0]) == ({}, [])
    apart = rows.with_columns(iteration=pl.col("trace"))
    assert common_steps(apart) == ({}, [])


def of_threads(*calls: tuple[int, int, int, str], is_paired: bool | None = True) -> list[tuple[str, int]]:
    """Return what is found in calls, each a thread, start and end in us, and a collective."""
    names = ("stream", "start_ns", "end_ns", "collective")
    rows = [
        dict(zip(names, (thread, 1_000 * start, 1_000 * end, name), strict=True))
        | {"trace": 0, "rank": 3, "is_paired": is_paired}
        for thread, start, end, name in calls
    ]
    return found(calls=pl.DataFrame(rows, schema_overrides={"is_paired": pl.Boolean}))


def test_a_thread_carries_out_one_collective_after_another() -> None:
    first = (1, 0, 100, "all_reduce")
    assert of_threads(first, (1, 98, 200, "all_gather")) == []  # two roundings to whole microseconds
    assert of_threads(first, (1, 97, 200, "all_gather")) == [("calls-overlap", 1)]
    inside = [(1, 10, 20, "all_gather"), (1, 30, 40, "all_gather")]
    assert of_threads(first, *inside) == [("calls-overlap", 2)]
    assert of_threads(first, (2, 50, 200, "all_gather")) == []  # another thread
    assert of_threads((1, 0, 100, "send"), (1, 50, 200, "recv")) == []  # messages go on elsewhere
    assert of_threads(first, *inside, is_paired=None) == []  # kernels have streams
