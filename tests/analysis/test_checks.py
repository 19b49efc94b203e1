"""What is wrong with the data reaches every number that rests on it; what is possible needs no word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from checking import findings_in
from local_traces import kernel, op, result, step, table, write

from ccl_bench import metrics
from ccl_bench.analysis.checks import CHECKS, checked_tables
from ccl_bench.analysis.derived import DERIVED, tables_behind
from ccl_bench.analysis.findings import foreign_groups, impossible_rates, lengths_of_another_unit
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.schema import TABLES
from ccl_bench.testing import Message, Plan, write_run

if TYPE_CHECKING:
    from pathlib import Path

WAYS = [way for metric in metrics.load() for way in metric.sources]


def test_the_tables_of_a_check_are_computed_for_every_number_that_it_touches() -> None:
    DERIVED.load()
    touched = 0
    for way in WAYS:
        behind = tables_behind(way.needs)
        for check in CHECKS:
            if not behind.isdisjoint(check.touches):
                assert checked_tables(way.needs) >= {*check.needs}
                touched += 1
    assert touched > 200


def test_what_checks_need_and_touch_are_tables() -> None:
    DERIVED.load()
    known = {*TABLES, *DERIVED.names(), "facts", "no table"}
    for check in CHECKS:
        assert {*check.needs, *check.touches} <= known


GATHER = Message(1_000_000, 20_000)
SMALL = Plan(dp_shard=4, steps=2, forward_ns=50_000, backward_ns=90_000, all_gather=GATHER)
OF_CALLS = ("coll_call_num", "gpu_busy", "total_communication_time", "total_kernel_time")


@pytest.mark.parametrize("name", OF_CALLS)
def test_a_rank_that_lacks_a_collective_shows_on_the_number_alone(name: str, tmp_path: Path) -> None:
    write_run(SMALL, tmp_path)
    path = tmp_path / "rank2_trace.json"
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    kernels = [each for each in events if each.get("cat") == "kernel" and "AllGather" in each["name"]]
    lost = kernels[3]["args"]["correlation"]
    document["traceEvents"] = [
        each for each in events if each.get("args", {}).get("correlation") != lost or each["ph"] != "X"
    ]
    path.write_text(json.dumps(document))
    (found,) = evaluate(open_run(tmp_path), [name], jobs=1, use_cache=False)
    assert {"collectives-lacking", "members-missing"} & {each.code for each in found.findings}


def lengths(*medians: tuple[int, float], names: int = 5) -> pl.DataFrame:
    """Return usual lengths, ns, of as many kernels of each rank, a few times as long from name to name."""
    rows = [
        (rank, rank, "kernels", f"k{n}", median * (n + 1)) for rank, median in medians for n in range(names)
    ]
    return pl.DataFrame(rows, ["trace", "rank", "table", "name", "median_ns"], orient="row")


@pytest.mark.parametrize(
    ("usual", "said"),
    [
        (lengths((0, 1e4), (1, 1e4), (2, 1e4), (3, 6.2e4)), None),  # 10^0.79
        (lengths((0, 1e4), (1, 1e4), (2, 1e4), (3, 6.4e4)), "kernels of rank 3 take 6.4 times"),  # 10^0.81
        (lengths((0, 1e4), (1, 1e4), (2, 1e7), (3, 1e4)), "kernels of rank 2 take 1,000 times"),
        (
            lengths((0, 1e4), (1, 10.0)),
            "rank 0 take 1,000 times as long as the same ones of",
        ),
        (lengths((0, 1e4), (1, 1e7), names=4), None),
        (lengths((0, 1e7)), None),
    ],
)
def test_lengths_of_a_rank_may_not_differ_by_a_power_of_ten(usual: pl.DataFrame, said: str | None) -> None:
    found = findings_in({"name_lengths": usual})
    assert [each.code for each in found] == ["times-of-another-unit"] * (said is not None)
    assert all(str(said) in each.message for each in found)
    assert lengths_of_another_unit(usual.clear()) == []


def calls(size_bytes: int, time_ns: int) -> pl.DataFrame:
    return pl.DataFrame({"size_bytes": [size_bytes], "bus_factor": [1.5], "time_ns": [time_ns]})


@pytest.mark.parametrize(("time_ns", "count"), [(248_000, 0), (247_000, 1)])
def test_no_call_is_faster_than_its_link_allows(time_ns: int, count: int) -> None:
    # The NVLink of an A100 has 300 GB/s in one direction; switches that reduce make it 600: 150 MB in 250 us.
    devices = pl.DataFrame({"name": ["NVIDIA A100-SXM4-80GB", None]})
    found = impossible_rates(calls(100_000_000, time_ns), devices)
    assert [each.code for each in found] == ["rate-impossible"] * count


def test_the_fastest_link_is_the_limit_of_an_unknown_device() -> None:
    nothing = pl.DataFrame({"name": pl.Series([None], dtype=pl.String)})
    assert impossible_rates(calls(100_000_000, 98_000), nothing) == []  # 1,500 GB/s, NVLink 5 has 1,800
    assert [each.count for each in impossible_rates(calls(1_000_000_000, 98_000), nothing)] == [1]


def test_the_usual_length_of_a_name_is_the_median_of_those_that_take_any_time(tmp_path: Path) -> None:
    lengths_us = (10, 0, 30, 20, 40)
    events = [kernel("gemm", n + 1, 100 * n, 100 * n + length) for n, length in enumerate(lengths_us)]
    run = write(tmp_path, [*events, op("aten::mm", 0, 7), op("aten::mm", 20, 27)], world_size=1)
    rows = table(run, "name_lengths").select("table", "name", "median_ns").rows()
    assert rows == [("kernels", "gemm", 25_000.0), ("cpu_ops", "aten::mm", 7_000.0)]


@pytest.mark.parametrize(("over_us", "codes"), [(2, []), (3, ["steps-amid-operators"])])
def test_no_step_begins_within_an_operator_of_its_own_thread(
    over_us: int, codes: list[str], tmp_path: Path
) -> None:
    # The operator of another thread may go on; that of the same one by two roundings.
    events = [step(1, 0, 100), step(2, 100, 200), op("aten::add", 90, 100 + over_us)]
    events += [op("aten::mul", 50, 150, tid=2), op("aten::mm", 110, 120)]
    found = result(write(tmp_path, events, world_size=1), "iteration_wall_clock_time")
    assert [each.code for each in found.findings if each.code == "steps-amid-operators"] == codes


def groups_of(*rows: tuple[int | None, list[int] | None]) -> pl.DataFrame:
    types = {"rank": pl.Int64, "members": pl.List(pl.Int64)}
    return pl.DataFrame([*rows], types, orient="row")


def test_a_rank_is_a_member_of_the_groups_that_it_communicates_in() -> None:
    assert foreign_groups(groups_of((0, [0, 1]), (1, [0, 1]), (2, None), (None, [0, 1]))) == []
    (finding,) = foreign_groups(groups_of((0, [0, 1]), (1, [2, 3])))
    assert (finding.code, finding.count) == ("groups-foreign", 1)
    assert "[2, 3] on rank 1" in finding.message
