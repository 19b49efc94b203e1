"""Windows of traffic against a sweep over every nanosecond, and what is made of them."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cross_runs import frame, result, results, tables_and_results

from ccl_bench import metrics
from ccl_bench.analysis.communication.traffic import traffic_windows
from ccl_bench.analysis.facts import Facts
from ccl_bench.testing import Message, Plan, values, write_run

Call = tuple[str, int, int]


def table(calls: list[Call], **more: Any) -> pl.DataFrame:
    rows = [
        {"trace": 0, "rank": 0, "step": 1, "dimension": d, "start_ns": s, "end_ns": e, "size_bytes": 1} | more
        for d, s, e in calls
    ]
    return frame("traffic", rows)


def swept(calls: list[Call]) -> list[Call]:
    """Return windows by going through every nanosecond: another dimension on its own ends a window."""
    end = max(e for _, _, e in calls)
    dimensions = sorted({d for d, _, _ in calls})
    on = {d: [any(s <= t < e for name, s, e in calls if name == d) for t in range(end)] for d in dimensions}
    found = []
    for name in dimensions:
        begun = last = None
        for t in range(end):
            if on[name][t]:
                begun, last = t if begun is None else begun, t
            elif begun is not None and any(on[d][t] for d in dimensions):
                found.append((name, begun, last + 1))
                begun = None
        if begun is not None:
            found.append((name, begun, last + 1))
    return sorted(found)


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_those_of_a_sweep(seed: int):
    draw = random.Random(seed)
    calls = [
        (draw.choice("abc"), s := draw.randrange(30), s + draw.randrange(1, 7))
        for _ in range(draw.randrange(1, 10))
    ]
    windows = traffic_windows(table(calls))
    assert sorted(windows.select("dimension", "start_ns", "end_ns").rows()) == swept(calls)
    assert windows["calls"].sum() == windows["bytes"].sum() == len(calls)
    for row in windows.to_dicts():
        own = {t for d, s, e in calls if d == row["dimension"] for t in range(s, e)}
        assert row["communication_ns"] == len(own & set(range(row["start_ns"], row["end_ns"])))


def gaps(calls: list[Call]) -> list[int | None]:
    return traffic_windows(table(calls))["gap_ns"].to_list()


def test_a_gap_leads_to_the_next_window_of_another_dimension():
    assert gaps([("a", 0, 10), ("b", 15, 20), ("a", 22, 30)]) == [5, 2, None]


def test_calls_of_one_dimension_are_one_window_while_no_other_communicates():
    assert gaps([("a", 0, 10), ("a", 50, 60), ("b", 61, 70)]) == [1, None]


def test_a_call_of_another_dimension_beside_a_running_one_does_not_cut_it():
    assert gaps([("a", 0, 40), ("b", 10, 20), ("a", 30, 50)]) == [-30 - 10, None]


def test_windows_that_overlap_have_a_gap_below_zero():
    assert gaps([("a", 0, 10), ("b", 4, 20), ("a", 30, 31)]) == [-6, 10, None]


def test_steps_and_traces_have_windows_of_their_own():
    both = pl.concat(
        [table([("a", 0, 10), ("b", 20, 30)], trace=t, rank=t, step=s) for t in (0, 1) for s in (1, 2)]
    )
    assert traffic_windows(both)["gap_ns"].to_list() == [10, None] * 4


def test_the_metric_is_the_mean_gap_and_overlapping_windows_count_as_none():
    metric = metrics.load().get("traffic_window")
    steps = frame("steps", [{"trace": 0, "rank": 0, "step": 1}])
    traffic = table([("a", 0, 10), ("b", 4, 20), ("a", 30, 35), ("a", 40, 45)])
    found = metric.compute(traffic, steps, Facts())
    assert found.value == pytest.approx((0 + 10) / 2 / 1e9)
    assert found.details["overlapping_windows_count"] == 1
    # a: windows of 10 ns, busy throughout, and of 15 ns, busy for 10
    assert found.details["per_dimension"]["a"]["duty_ratio"] == pytest.approx(20 / 25)
    assert found.details["per_dimension"]["a"]["mean_length_s"] == pytest.approx(12.5 / 1e9)


def test_a_run_of_one_dimension_has_no_gap(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1), tmp_path)
    assert result(tmp_path, "traffic_window").status == "not_measurable"


def test_windows_of_a_run_are_those_of_its_calls(tmp_path: Path):
    write_run(Plan(dp_shard=2, tp=2, steps=2, layers=2, gradient_norm=Message(1, 5_000, "Float")), tmp_path)
    tables, metrics = tables_and_results(tmp_path, ["traffic"], ["traffic_window"])
    traffic = tables["traffic"].drop_nulls("step")
    found: list[float] = []
    for (_, _), calls in traffic.sort("start_ns").group_by("trace", "step"):
        start = calls["start_ns"].min()
        rows = calls.select("dimension", pl.col("start_ns") - start, pl.col("end_ns") - start).rows()
        windows = sorted(instants(rows), key=lambda window: (window[1], window[2], window[0]))
        for index, (name, _, end) in enumerate(windows):
            following = [s for d, s, _ in windows[index + 1 :] if d != name]
            found += [max(0, following[0] - end)] if following else []
    assert metrics["traffic_window"].value == pytest.approx(sum(found) / len(found) / 1e9)


def instants(calls: list[Call]) -> list[Call]:
    """Return windows as `swept` does, looking only at the instants at which something starts or ends."""
    times = sorted({t for _, s, e in calls for t in (s, e)})
    place = {t: index for index, t in enumerate(times)}
    return [(d, times[s], times[e]) for d, s, e in swept([(d, place[s], place[e]) for d, s, e in calls])]


def test_shares_of_dimensions_are_those_of_the_plan(tmp_path: Path):
    plan = Plan(dp_shard=2, tp=2, pp=2, microbatches=2, steps=2, layers=1)
    expected = write_run(plan, tmp_path)
    kinds = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
    volumes = [f"collective_volume_{kind}" for kind in kinds]
    found, *moved = results(tmp_path, "traffic_distribution", *volumes)
    assert found.value == pytest.approx(values(expected)["traffic_distribution"])
    count = plan.world_size * plan.steps
    sums = {
        d: sum(expected.bytes_by_dimension(r, s)[d] for r in range(8) for s in plan.step_numbers)
        for d in ("tp", "dp_shard", "pp")
    }
    reported = {d: one["bytes_per_gpu_and_step"] for d, one in found.details["per_dimension"].items()}
    assert reported == pytest.approx({d: total / count for d, total in sums.items()})
    for name, volume in zip(kinds.values(), moved, strict=True):
        total = sum(expected.bytes_by_collective(r, s)[name] for r in range(8) for s in plan.step_numbers)
        assert volume.value == pytest.approx(total / count / 1e9)


def test_ranks_without_a_call_count_in_bytes_of_a_gpu(tmp_path: Path):
    # two stages, one microbatch: each sends one message and gets one
    write_run(Plan(pp=2, layers=1, steps=1, pipeline=Message(500_000, 1_000)), tmp_path)
    tables, of_run = tables_and_results(tmp_path, ["traffic", "steps"], ["collective_volume_p2p"])
    assert of_run["collective_volume_p2p"].value == pytest.approx(2 * 1_000_000 / 1e9)
    traffic, steps = tables["traffic"], tables["steps"]
    alone = traffic.filter(pl.col("rank") == 0)
    found = metrics.load().get("traffic_distribution_16").compute(alone, steps)
    assert found.value == pytest.approx(2 * 1_000_000 / 2 / 1e9)
    assert found.details["per_rank_gb"] == pytest.approx({"0": 0.002, "1": 0})
