"""Waiting in calls whose durations do not show it: by hand, and painted from the plan of a run."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from cross_runs import call, facts, frame, group, matched, results

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.metrics.shared.waiting import MUCH_ELSEWHERE, elsewhere_findings
from ccl_bench.run import open_run
from ccl_bench.testing import Experts, Message, Plan, Straggler, timeline, trace_path, write_run

CODE = "waiting-elsewhere"
TWO = group("g", 0, 1)


def clocks(residual: int = 0, *, islands: tuple[int, int] = (0, 0)) -> pl.DataFrame:
    """Return the clocks of two ranks; that of rank 1 is 100 ns ahead."""
    rows = [
        {"rank": rank, "offset_ns": 100 * rank, "residual_ns": residual, "ends": 1, "island": islands[rank]}
        for rank in (0, 1)
    ]
    return frame("clock_offsets", rows)


def waited(
    calls: Sequence[dict[str, Any]],
    offsets: pl.DataFrame,
    *groups: dict[str, Any],
    computed: Sequence[tuple[int, int, int]] = (),
) -> dict[tuple[int, str], int]:
    """Return the waiting of each rank and collective; (rank, start, end) are `computed`."""
    stated = facts()
    traffic = DERIVED.get("traffic").compute(frame("calls", calls), frame("groups", groups), stated)
    traffic = traffic.with_columns(trace="rank")
    together, messages = matched(calls, *groups), DERIVED.get("messages").compute(traffic)
    parts = DERIVED.get("call_parts").compute(traffic, together, messages, stated)
    stretches = pl.concat([_stretches(calls, computed, rank) for rank in (0, 1)])
    found = DERIVED.get("other_waits").compute(stretches, parts, together, messages, offsets)
    return {(row["rank"], row["collective"]): row["wait_ns"] for row in found.iter_rows(named=True)}


def _stretches(
    calls: Sequence[dict[str, Any]], computed: Sequence[tuple[int, int, int]], rank: int
) -> pl.DataFrame:
    own = [row for row in calls if row["rank"] == rank]
    spans = [(row["start_ns"], row["end_ns"], "communication") for row in own]
    spans += [(start, end, "compute") for who, start, end in computed if who == rank]
    work = pl.DataFrame(spans, schema=["start_ns", "end_ns", "kind"], orient="row")
    steps = pl.DataFrame({"step": [1], "device_start_ns": [0], "device_end_ns": [1000]})
    table = DERIVED.get("call_stretches").compute(steps, work, frame("calls", own))
    keys = (("trace", rank), ("rank", rank), ("iteration", None))
    return table.with_columns(pl.lit(value, dtype=pl.Int64).alias(key) for key, value in keys)


def pair(first: tuple[int, int], second: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    return [call(0, 1, *first, **more), call(1, 1, *second, **more)]


def broadcast(first: tuple[int, int], second: tuple[int, int]) -> list[dict[str, Any]]:
    return pair(first, second, collective="broadcast")


def test_a_broadcast_waits_until_its_last_member_starts() -> None:
    # Both end at 20 on one true clock; rank 1 came at 13.
    assert waited(broadcast((4, 20), (113, 120)), clocks(), TWO) == {(0, "broadcast"): 9}


def test_who_leaves_before_the_last_member_starts_waits_no_longer() -> None:
    assert waited(broadcast((4, 6), (113, 120)), clocks(), TWO) == {(0, "broadcast"): 2}


@pytest.mark.parametrize(("residual", "found"), [(8, {(0, "broadcast"): 9}), (9, {})])
def test_what_the_clocks_do_not_resolve_is_no_waiting(residual: int, found: dict[Any, int]) -> None:
    assert waited(broadcast((4, 20), (113, 120)), clocks(residual), TWO) == found


def test_without_a_common_clock_the_shortest_member_moves_data() -> None:
    late = broadcast((4, 20), (513, 520))
    assert waited(late, clocks(islands=(0, 1)), TWO) == {(0, "broadcast"): 9}
    assert waited(late, clocks().clear(), TWO) == {(0, "broadcast"): 9}


def test_an_uneven_all_to_all_shows_waiting_on_a_common_clock_only() -> None:
    uneven = pair((4, 20), (113, 125), collective="all_to_all", uneven=True)
    assert waited(uneven, clocks(), TWO) == {(0, "all_to_all"): 9}
    assert waited(uneven, clocks(islands=(0, 1)), TWO) == {}


@pytest.mark.parametrize(("dimension", "found"), [("cp", {(1, "recv"): 8}), ("pp", {})])
def test_messages_of_a_pipeline_are_left_out(dimension: str, found: dict[Any, int]) -> None:
    message = [
        call(0, 1, 10, 14, collective="send", peer=1),
        call(1, 1, 102, 115, collective="recv", peer=0),
    ]
    assert waited(message, clocks(), group("g", 0, 1, dimension=dimension)) == found


def test_symmetric_collectives_and_calls_on_which_ranks_disagree_are_left_out() -> None:
    assert waited(pair((4, 20), (113, 120)), clocks(), TWO) == {}
    sizes = [row | {"size_bytes": 8 + row["rank"]} for row in broadcast((4, 20), (113, 120))]
    assert waited(sizes, clocks(), TWO) == {}


def test_waiting_behind_compute_or_another_transfer_does_not_count() -> None:
    late = broadcast((4, 20), (113, 120))
    assert waited(late, clocks(), TWO, computed=[(0, 5, 8)]) == {(0, "broadcast"): 6}
    # Of the all-reduce, [10, 12) is transfer.
    reduced = [row | {"call": 2, "order": 2, "group": "h"} for row in pair((10, 12), (110, 112))]
    assert waited([*late, *reduced], clocks(), TWO, group("h", 0, 1)) == {(0, "broadcast"): 7}


LATE = Plan(
    dp_shard=2, tp=2, steps=3, stragglers=(Straggler(1, layer_ns=400_000),), clock_offsets_ns={1: 7_000_000}
)  # fmt: skip


def written(plan: Plan, folder: Path) -> Path:
    """Return the run of a plan, with broadcasts for its all-reduces."""
    write_run(plan, folder)
    for rank in plan.present_ranks:
        path = trace_path(folder, rank)
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub("all_?reduce", "broadcast", text).replace("AllReduce", "Broadcast"))
    return folder


def painted(plan: Plan) -> float:
    """Return the waiting in all-reduces in a mean step, ns, by painting each nanosecond of each rank.

    Compute hides transfer, transfer hides waiting, and of two calls that wait the first is seen.
    """
    made = timeline(plan)
    seen = 0
    for records in made.steps:
        last: dict[tuple[str, str], int] = {}
        for rank, record in enumerate(records):
            for item, start in zip(made.program(rank).instructions, record.starts, strict=True):
                if item.call is not None:
                    key = (made.mesh.group(rank, item.call.dimension).name, item.call.match)
                    last[key] = max(last.get(key, 0), start)
        for rank, record in enumerate(records):
            spans: list[tuple[int, int, int, int]] = []  # layer, start, end, colour
            for item, start, end in zip(
                made.program(rank).instructions, record.starts, record.ends, strict=True
            ):
                if item.call is not None:
                    arrived = last[made.mesh.group(rank, item.call.dimension).name, item.call.match]
                    spans.append((-start, start, arrived, 1 if item.call.dimension == "tp" else 2))
                    spans.append((1, arrived, end, 3))
                elif item.phase != "copy":
                    spans.append((2, start, end, 4))
            begin = min(record.starts)
            canvas = np.zeros(record.device_end_ns - begin, dtype=np.int8)
            for _, start, end, colour in sorted(spans):
                canvas[start - begin : end - begin] = colour
            seen += int((canvas == 1).sum())
    return seen / plan.steps / plan.world_size


@pytest.mark.parametrize("metric", ["straggler", "straggler_lag_16"])
def test_the_finding_has_the_waiting_of_the_plan(metric: str, tmp_path: Path) -> None:
    [found] = results(written(LATE, tmp_path), metric)
    known = painted(LATE)
    assert found.details["waiting_elsewhere_s"] == {"broadcast": pytest.approx(known / 1e9, rel=1e-6)}
    [finding] = [each for each in found.findings if each.code == CODE]
    [told] = re.findall(r"broadcast ([\d.]+) ms a step", finding.message)
    assert float(told) == pytest.approx(known / 1e6, rel=0.005)
    [share] = re.findall(r"another ([\d.]+) % of the step", finding.message)
    [step] = results(tmp_path, "iteration_wall_clock_time")
    assert step.value is not None
    assert float(share) == pytest.approx(100 * known / 1e9 / step.value, rel=0.02)


HEALTHY = {
    "all-reduces": (replace(LATE, stragglers=()), False),
    "late, in all-reduces": (LATE, False),
    "broadcasts": (replace(LATE, stragglers=()), True),
    "broadcasts with noise": (replace(LATE, stragglers=(), jitter_ns=20_000), True),
    "large broadcasts": (replace(LATE, stragglers=(), tp_all_reduce=Message(4_194_304, 900_000)), True),
    "pipeline": (Plan(pp=2, dp_shard=2, microbatches=8), False),
    "experts": (
        Plan(dp_shard=4, ep=4, experts=Experts(((100,) * 4,) * 4, ns_per_token=500)),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("plan", "is_rooted"), HEALTHY.values(), ids=HEALTHY)
def test_a_run_in_which_no_other_call_waits_has_no_such_finding(
    plan: Plan, is_rooted: bool, tmp_path: Path
) -> None:
    (written if is_rooted else write_run)(plan, tmp_path)
    for found in results(tmp_path, "straggler", "straggler_lag_16"):
        assert CODE not in {each.code for each in found.findings}


@pytest.mark.parametrize(("wait_s", "codes"), [(0.0499, []), (MUCH_ELSEWHERE, [CODE])])
def test_waiting_elsewhere_is_a_finding_from_a_twentieth_of_the_step_on(
    wait_s: float, codes: list[str]
) -> None:
    second = pl.DataFrame({"length_ns": [800_000_000, 1_200_000_000]})
    assert [found.code for found in elsewhere_findings({"broadcast": wait_s}, second)] == codes


def test_the_late_host_of_a_recorded_run_is_told_of(corpus: Path) -> None:
    """Its truth: 30 % of the step; ranks 0, 2 and 3 wait in DDP's broadcast of buffers for rank 1."""
    [found] = evaluate(open_run(corpus / "conclusions" / "late_host"), ["straggler"], jobs=1)
    assert found.value is not None
    assert found.value < 0.02
    assert found.details["waiting_elsewhere_s"]["broadcast"] == pytest.approx(0.3 * 0.75 * 0.03974, rel=0.05)
    assert CODE in {each.code for each in found.findings}
