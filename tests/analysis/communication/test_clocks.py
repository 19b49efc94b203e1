"""How far clocks are apart, and when they are too uncertain to tell who came first."""

from pathlib import Path

import polars as pl
import pytest
from checking import findings_in
from cross_plain import nccl_kernels
from cross_runs import call, documents, group, matched, tables
from recorded_runs import tables_of

from ccl_bench.analysis.communication.clocks import format_duration
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.testing import Message, Plan, Straggler, write_run

MESHES = {
    "one group": Plan(dp_shard=4, steps=1, layers=2),
    "no collective of all ranks": Plan(dp_shard=2, tp=2, steps=1, layers=1),
    "stages joined by messages alone": Plan(tp=2, pp=2, steps=1, layers=1),
}
OFFSETS = {0: 40_000, 1: -7_000_000, 2: 3_000_000, 3: 1}


@pytest.mark.parametrize("mesh", MESHES)
def test_offsets_of_clocks_come_out_to_the_nanosecond(mesh: str, tmp_path: Path):
    plan = MESHES[mesh]
    expected = write_run(
        Plan(**{f: getattr(plan, f) for f in plan.__dataclass_fields__} | {"clock_offsets_ns": OFFSETS}),
        tmp_path,
    )
    rows = tables(tmp_path, "clock_offsets")["clock_offsets"].rows(named=True)
    assert [row["rank"] for row in rows] == list(range(plan.world_size))
    assert {row["residual_ns"] for row in rows} == {0}
    islands: dict[int, list[int]] = {}
    for row in rows:
        islands.setdefault(row["island"], []).append(row["offset_ns"] - expected.clock_offset_ns(row["rank"]))
    assert all(len(set(distances)) == 1 for distances in islands.values())
    assert sorted(islands) == ([0, 2] if mesh == "stages joined by messages alone" else [0])


def test_residuals_of_the_tensor_parallel_run_are_those_of_a_plain_count(corpus: Path):
    folder = corpus / "kineto" / "megatron-tp8"
    ends = {
        rank: [start + length for start, length in nccl_kernels(trace)]
        for rank, trace in documents(folder).items()
    }
    rows = {row["rank"]: row for row in tables_of(folder)["clock_offsets"].to_dicts()}
    offsets = {rank: row["offset_ns"] / 1000 for rank, row in rows.items()}
    aligned = {rank: [end - offsets[rank] for end in ends[rank]] for rank in ends}
    middles = [median(row) for row in zip(*aligned.values(), strict=True)]
    for rank, row in rows.items():
        distances = [abs(end - middle) for end, middle in zip(aligned[rank], middles, strict=True)]
        # offsets of the set are common up to a constant, which its residuals do not see
        assert row["residual_ns"] / 1000 == pytest.approx(median(distances), abs=5)
        assert row["residual_ns"] <= 50_000
        assert row["ends"] == 84


def median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def test_collectives_that_do_not_end_together_on_all_members_leave_a_residual():
    # two clocks: one ahead by 100, with ends off by 0, 10 and 20 around that
    rows = [call(0, k, 1000 * k, 1000 * k + 50) for k in (1, 2, 3)]
    rows += [call(1, k, 1000 * k, 1000 * k + 150 + 10 * (k - 2)) for k in (1, 2, 3)]
    found = DERIVED.get("clock_offsets").compute(matched(rows, group("g", 0, 1)))
    assert found["offset_ns"].to_list() == [-50, 50]
    assert found["residual_ns"].to_list() == [5, 5]


def test_the_end_of_a_collective_is_the_median_of_its_members_on_one_clock():
    # clocks ahead by 0, 100 and 400; on one clock ends are off by (0, -30, -10), (0, 0, 0) and (0, 60, 20)
    late = {0: (0, 0, 0), 1: (-30, 0, 60), 2: (-10, 0, 20)}
    ahead = {0: 0, 1: 100, 2: 400}
    rows = [
        call(rank, k, 1000 * k, 1000 * k + 50 + ahead[rank] + late[rank][k - 1])
        for rank in late
        for k in (1, 2, 3)
    ]
    table = DERIVED.get("clock_offsets").compute(matched(rows, group("g", 0, 1, 2)))
    # medians of the three collectives: -10, 0 and 20
    assert table["offset_ns"].to_list() == [-100, 0, 300]
    assert table["residual_ns"].to_list() == [10, 20, 0]


def arrivals(folder: Path) -> pl.DataFrame:
    return tables(folder, "arrivals")["arrivals"]


def test_the_order_of_arrival_is_that_of_the_plan_whatever_the_clocks_say(tmp_path: Path):
    slow = (Straggler(1, layer_ns=90_000), Straggler(2, layer_ns=40_000))
    plan = Plan(dp_shard=4, steps=1, layers=2, prefetch=False, stragglers=slow, clock_offsets_ns=OFFSETS)
    expected = write_run(plan, tmp_path)
    found = arrivals(tmp_path)
    operations = [operation for operation in expected.operations if len(operation.members) == 4]
    assert found.height == len(operations)
    starts = [
        {rank: member.start_ns for rank, member in operation.members.items()} for operation in operations
    ]
    skews = sorted(max(one.values()) - min(one.values()) for one in starts)
    assert sorted(found["skew_ns"].to_list()) == skews
    late = [row for row in found.to_dicts() if row["skew_ns"]]
    assert {(row["order"][-1], row["last_rank"]) for row in late} == {(1, 1)}


def uncertain(skew: int) -> pl.DataFrame:
    """Return arrivals on clocks that are certain to 5 ns: rank 1 comes `skew` after rank 0."""
    rows = [call(0, k, 1000 * k, 1000 * k + 50) for k in (1, 2, 3)]
    rows += [call(1, k, 1000 * k + 100 + skew, 1000 * k + 150 + 10 * (k - 2)) for k in (1, 2, 3)]
    together = matched(rows, group("g", 0, 1))
    clocks = DERIVED.get("clock_offsets").compute(together)
    return DERIVED.get("arrivals").compute(together, clocks)


def test_the_order_is_reported_where_members_are_further_apart_than_clocks_are_uncertain():
    found = uncertain(6)
    assert found["skew_ns"].to_list() == [6, 6, 6]
    assert found["residual_ns"].to_list() == [5, 5, 5]
    assert found["order"].to_list() == [[0, 1]] * 3
    assert found["last_rank"].to_list() == [1, 1, 1]


def test_the_order_is_refused_where_the_residual_exceeds_the_skew_and_that_is_said():
    found = uncertain(4)
    assert found["order"].to_list() == found["last_rank"].to_list() == [None, None, None]
    [finding] = findings_in({"arrivals": found})
    assert (finding.code, finding.count) == ("arrival-refused", 3)


def test_clocks_that_no_collective_connects_show_no_order(tmp_path: Path):
    rows = [call(rank, 1, 10 * rank, 100, collective="broadcast") for rank in (0, 1)]
    together = matched(rows, group("g", 0, 1))
    found = DERIVED.get("arrivals").compute(together, DERIVED.get("clock_offsets").compute(together))
    assert found.select("skew_ns", "residual_ns", "order", "last_rank").rows() == [(None, None, None, None)]


def test_members_that_come_at_once_have_no_last(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1, gradient_norm=Message(1, 100, "Float")), tmp_path)
    found = arrivals(tmp_path)
    assert set(found["skew_ns"]) == {0}
    assert found["last_rank"].null_count() == found.height


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_000, "1 us"), (-1_500, "-1.5 us"), (999_999, "1e+03 us"),
     (1_000_000, "1 ms"), (1_000_000_000, "1 s"), (61_250_000_000, "61.2 s")],
)  # fmt: skip
def test_lengths_of_time_have_a_fitting_unit(length: int, text: str):
    assert format_duration(length) == text


@pytest.mark.parametrize(
    ("starts", "order", "last"),
    [
        ((0, 5, 11), [0, 1, 2], 2),  # apart by 11, and the last by 6 from the next
        ((0, 5, 10), [0, 1, 2], None),  # the last by 5, as clocks may be
        ((0, 0, 5), [0, 1, 2], None),
        ((0, 1, 4), None, None),
        ((11, 5, 0), [2, 1, 0], 0),
    ],
)
def test_who_came_last_is_known_if_the_clocks_are_more_certain_than_its_distance(
    starts: tuple[int, ...], order: list[int] | None, last: int | None
):
    members = matched([call(rank, 1, start, 100) for rank, start in enumerate(starts)], group("g", 0, 1, 2))
    clocks = pl.DataFrame(
        {"iteration": [None] * 3, "rank": [0, 1, 2], "offset_ns": [0] * 3, "residual_ns": [5, 0, 2]}
        | {"ends": [1] * 3, "island": [0] * 3},
        schema_overrides={"iteration": pl.Int64},
    )
    [row] = DERIVED.get("arrivals").compute(members, clocks).to_dicts()
    assert (row["skew_ns"], row["residual_ns"]) == (max(starts) - min(starts), 5)
    assert (row["order"], row["last_rank"]) == (order, last)


def test_clocks_that_are_shifted_compare_arrivals_on_one():
    members = matched([call(0, 1, 0, 100), call(1, 1, 1_003, 1_100)], group("g", 0, 1))
    clocks = DERIVED.get("clock_offsets").compute(members)
    assert clocks.select("rank", "offset_ns", "residual_ns", "ends", "island").rows() == [
        (0, -500, 0, 1, 0), (1, 500, 0, 1, 0),
    ]  # fmt: skip
    [row] = DERIVED.get("arrivals").compute(members, clocks).to_dicts()
    assert (row["skew_ns"], row["last_rank"], row["present"]) == (3, 1, 2)
