"""Waiting, transfer and what is unknown of each call, by hand and instant by instant."""

import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cross_runs import call, facts, frame, group, matched, measured, results
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.communication.calls import (
    DISAGREES,
    MEMBERS_LACK,
    NO_OTHER,
    NO_STEP,
    SHOWS_NONE,
    STEP_LACKS,
)
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.metrics.shared.waiting import hidden_parts
from ccl_bench.result import Result
from ccl_bench.testing import Expected, Plan, Straggler, Style, damage, trace_path, values, write_run

TWO = group("g", 0, 1)


def parts(calls: Sequence[dict[str, Any]], *groups: dict[str, Any], **stated: Any) -> pl.DataFrame:
    """Return `call_parts` of calls in groups."""
    known = facts(**stated)
    traffic = DERIVED.get("traffic").compute(frame("calls", calls), frame("groups", groups), known)
    traffic = traffic.with_columns(trace="rank")
    messages = DERIVED.get("messages").compute(traffic)
    return DERIVED.get("call_parts").compute(traffic, matched(calls, *groups), messages, known)


def of_rank(found: pl.DataFrame, rank: int) -> list[tuple[str, int, int]]:
    """Return part, start and end of the parts of a rank."""
    return found.filter(pl.col("rank") == rank).select("part", "start_ns", "end_ns").rows()


def reasons(found: pl.DataFrame) -> set[str | None]:
    return set(found["reason"])


def test_the_first_rank_waits_for_the_last_and_both_move_data_for_the_rest():
    # Both end at 20 on one true clock. Rank 1 came at 13, 9 ns after rank 0; its clock is 100 ns ahead.
    found = parts([call(0, 1, 4, 20), call(1, 1, 113, 120)], TWO)
    assert of_rank(found, 0) == [("waiting", 4, 13), ("transfer", 13, 20)]
    assert of_rank(found, 1) == [("transfer", 113, 120)]
    assert reasons(found) == {None}


def test_where_a_member_has_no_trace_waiting_is_known_and_the_rest_is_not():
    # Rank 2 may have come later still: of the last 7 ns any part may be waiting for it.
    found = parts([call(0, 1, 4, 20), call(1, 1, 13, 20)], group("g", 0, 1, 2))
    assert of_rank(found, 0) == [("waiting", 4, 13), ("unknown", 13, 20)]
    assert of_rank(found, 1) == [("unknown", 13, 20)]
    assert reasons(found.filter(pl.col("part") == "unknown")) == {MEMBERS_LACK}


def test_members_of_a_group_of_unknown_size_are_all_ranks_that_the_job_has():
    unsized = group("g", dimension="unknown")
    calls = [call(0, 1, 4, 20), call(1, 1, 13, 20)]
    assert [row[0] for row in of_rank(parts(calls, unsized), 1)] == ["transfer"]
    assert [row[0] for row in of_rank(parts(calls, unsized, world_size=2), 1)] == ["transfer"]
    assert [row[0] for row in of_rank(parts(calls, unsized, world_size=4), 1)] == ["unknown"]


def test_in_a_group_of_one_nobody_is_waited_for():
    assert of_rank(parts([call(0, 1, 4, 20)], group("g", 0)), 0) == [("transfer", 4, 20)]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([call(0, 1, 4, 20)], NO_OTHER),
        ([call(r, 1, 4, 20 + r, collective="broadcast") for r in (0, 1)], SHOWS_NONE),
        ([call(r, 1, 4, 20 + r, collective="all_to_all", uneven=True) for r in (0, 1)], SHOWS_NONE),
        ([call(0, 1, 4, 20, collective="send_recv")], SHOWS_NONE),
        ([call(0, 1, 4, 20, collective="all_to_all", uneven=None)], NO_OTHER),
        ([call(0, 1, 4, 20, collective="send", peer=1)], NO_OTHER),
        ([call(r, 1, 4, 20, size_bytes=8 + r) for r in (0, 1)], DISAGREES),
        ([call(r, 1, 4, 20 + r, step=None) for r in (0, 1)], NO_STEP),
    ],
    ids=["alone", "rooted", "uneven", "batch", "unknown", "message", "sizes", "outside"],
)
def test_what_shows_no_waiting_is_unknown_and_says_why(calls: list[dict[str, Any]], reason: str):
    found = parts(calls, TWO)
    assert set(found["part"]) == {"unknown"}
    assert reasons(found) == {reason}


def test_where_a_trace_lacks_calls_of_a_step_only_other_steps_are_known():
    # Rank 1 broke off in step 2, after one of two calls.
    calls = [call(r, k, 10 * k, 10 * k + 5 + r, step=1 + (k > 1)) for r in (0, 1) for k in (1, 2, 3)][:-1]
    found = parts(calls, TWO)
    assert of_rank(found, 1)[:2] == [("waiting", 10, 11), ("transfer", 11, 16)]
    assert reasons(found.filter((pl.col("rank") == 1) & (pl.col("start_ns") >= 20))) == {STEP_LACKS}


def test_the_shorter_side_of_a_message_moves_data():
    calls = [
        call(0, 1, 10, 14, collective="send", peer=1),
        call(1, 1, 2, 15, collective="recv", peer=0),
    ]
    found = parts(calls, TWO)
    assert of_rank(found, 0) == [("transfer", 10, 14)]
    assert of_rank(found, 1) == [("waiting", 2, 11), ("transfer", 11, 15)]


GROUPS = {"g": (0, 1, 2), "h": (0, 1), "alone": (2,), "lacks a member": (0, 1, 7)}
interval = st.tuples(st.integers(0, 50), st.integers(0, 15)).map(lambda t: (t[0], t[0] + t[1]))
ranks = st.lists(interval, min_size=3, max_size=3)
bounds = st.lists(st.integers(0, 60), min_size=2, max_size=5, unique=True).map(sorted)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), st.sampled_from(["all_reduce", "broadcast"]), ranks)),
    st.lists(st.lists(interval, max_size=4), min_size=3, max_size=3),
    bounds,
)
def test_parts_of_steps_are_those_of_a_timeline_walked_by_nanoseconds(
    drawn: list[Any], computed: list[Any], edges: list[int]
):
    calls = [
        call(rank, number, *times[rank], group=name, collective=kind)
        for number, (name, kind, times) in enumerate(drawn)
        for rank in GROUPS[name]
        if rank < 3
    ]
    rows = [group(name, *members) for name, members in GROUPS.items()]
    found = parts(calls, *rows) if calls else DERIVED.get("call_parts").table.empty()
    windows = list(pairwise(edges))
    stretches = [_stretches(calls, computed[rank], windows, rank) for rank in range(3)]
    both = [DERIVED.get(name).compute(pl.concat(stretches), found) for name in _TABLES]

    truth = _walked(drawn, computed, windows)
    keys = ("rank", "step", "part")
    sums = both[0].group_by(keys).agg(pl.col("time_ns", "exposed_ns").sum())
    for place, column in enumerate(("time_ns", "exposed_ns"), start=3):
        reported = {row[:3]: row[place] for row in sums.iter_rows() if row[place]}
        assert reported == {key[1:]: count for key, count in truth[column].items() if key[0] == ""}
    alone = {row[:4]: row[4] for row in both[1].select("collective", *keys, "time_ns").iter_rows()}
    assert alone == {key: count for key, count in truth["time_ns"].items() if key[0]}


@pytest.mark.parametrize("later", [0, 1, 8, 16, 23, 100, 1000, -1, -8, -16, -100])
def test_calls_of_two_traces_do_not_hide_each_other_whatever_their_clocks(later: int):
    calls = [call(0, 1, 1004, 1020), call(1, 1, 1013 + later, 1020 + later)]
    stretches = [_stretches(calls, [], [(0, 3000)], rank) for rank in (0, 1)]
    for name in _TABLES:
        found = DERIVED.get(name).compute(pl.concat(stretches), parts(calls, TWO))
        times = found.select("rank", "part", "time_ns").rows()
        assert sorted(times) == [(0, "transfer", 7), (0, "waiting", 9), (1, "transfer", 7)]


_TABLES = ("communication_parts", "collective_parts")


def _stretches(
    calls: list[dict[str, Any]], computed: list[Any], windows: list[Any], rank: int
) -> pl.DataFrame:
    own = [row for row in calls if row["rank"] == rank]
    work = [(row["start_ns"], row["end_ns"]) for row in own] + computed
    marks = {"device_start_ns": [a for a, _ in windows], "device_end_ns": [b for _, b in windows]}
    kinds = ["communication"] * len(own) + ["compute"] * len(computed)
    intervals = pl.DataFrame(
        {"start_ns": [start for start, _ in work], "end_ns": [end for _, end in work], "kind": kinds},
        schema_overrides={"start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String},
    )
    table = DERIVED.get("call_stretches").compute(
        pl.DataFrame({"step": range(len(windows)), **marks}, schema_overrides={"step": pl.Int64}),
        intervals,
        frame("calls", own),
    )
    return table.with_columns(
        pl.lit(value, dtype=pl.Int64).alias(key)
        for key, value in (("trace", rank), ("rank", rank), ("iteration", None))
    )


def _walked(drawn: list[Any], computed: list[Any], windows: list[Any]) -> dict[str, Counter]:
    """Count the nanoseconds of each part: of all calls of a rank and step, and of one collective's."""
    found: dict[str, Counter] = {"time_ns": Counter(), "exposed_ns": Counter()}
    for step, (first, last) in enumerate(windows):
        for rank in range(3):
            for at in range(first, last):
                running = [
                    (kind, _part_at(name, kind, times, rank, at))
                    for name, kind, times in drawn
                    if rank in GROUPS[name] and times[rank][0] <= at < times[rank][1]
                ]
                hidden = any(start <= at < end for start, end in computed[rank])
                for kind in {"", *(kind for kind, _ in running)} if running else ():
                    here = {part for each, part in running if kind in ("", each)}
                    part = next(p for p in ("transfer", "unknown", "waiting") if p in here)
                    found["time_ns"][kind, rank, step, part] += 1
                    found["exposed_ns"][kind, rank, step, part] += not hidden
    return {name: Counter({key: n for key, n in counts.items() if n}) for name, counts in found.items()}


def _part_at(name: str, kind: str, times: list[tuple[int, int]], rank: int, at: int) -> str:
    """Return what a call does at an instant: it moves data as long as its shortest recorded member takes."""
    members = GROUPS[name]
    if len(members) == 1:
        return "transfer"
    if kind == "broadcast":
        return "unknown"
    shortest = min(times[r][1] - times[r][0] for r in members if r < 3)
    if at < times[rank][1] - shortest:
        return "waiting"
    return "unknown" if max(members) > 2 else "transfer"


LATE = Plan(dp_shard=2, tp=2, layers=2, stragglers=(Straggler(3, layer_ns=80_000),), jitter_ns=500)
METRICS = (
    "bandwidth_utilization_allreduce", "communication_fraction", "exposed_communication_time",
    "exposed_transfer_time", "exposed_wait_time", "gpu_busy", "total_communication_time",
    "traffic_distribution",
)  # fmt: skip


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected, dict[str, Result]]:
    """Return the run of that plan, what is expected of it, and metrics of it."""
    folder = tmp_path_factory.mktemp("late") / "run"
    expected = write_run(LATE, folder)
    found = results(folder, *METRICS)
    assert {one.status for one in found} == {"ok"}
    return folder, expected, {one.metric: one for one in found}


Late = tuple[Path, Expected, dict[str, Result]]


def test_the_parts_add_up_to_exposed_communication_in_each_step_and_on_each_rank(late: Late):
    found = late[2]
    whole = found["exposed_communication_time"].details
    for where in ("step", "rank"):
        for name, value in whole[f"per_{where}_s"].items():
            assert sum(whole[f"per_{where}_parts_s"][name].values()) == pytest.approx(value, abs=1e-15)
    waiting = found["exposed_wait_time"]
    assert waiting.value == pytest.approx(whole["parts_s"]["waiting"])
    assert waiting.details["per_rank_s"] == {
        rank: each["waiting"] for rank, each in whole["per_rank_parts_s"].items()
    }
    assert waiting.details["per_rank_s"]["3"] < min(waiting.details["per_rank_s"][r] for r in "012")
    assert sum(waiting.details["per_collective_s"].values()) == pytest.approx(waiting.value)
    assert sum(waiting.details["per_dimension_s"].values()) == pytest.approx(waiting.value)


def test_clocks_that_differ_change_neither_waiting_nor_transfer(late: Late, tmp_path: Path):
    run = Path(shutil.copytree(late[0], tmp_path / "run"))
    damage.shift_clock(trace_path(run, 2), 3_000_000)
    names = ("exposed_wait_time", "exposed_transfer_time")
    assert [found.value for found in results(run, *names)] == [late[2][name].value for name in names]


def test_one_rank_of_several_shows_no_waiting(late: Late, tmp_path: Path):
    run = Path(shutil.copytree(late[0], tmp_path / "run"))
    for rank in (1, 2, 3):
        trace_path(run, rank).unlink()
    found, busy, whole = results(run, "exposed_wait_time", "gpu_busy", "exposed_communication_time")
    assert found.status == "not_measurable"
    assert found.reason == (
        f"100 % of exposed communication is neither known waiting nor known transfer: {NO_OTHER}"
    )
    assert busy.details["waiting_pct"] == 0
    assert whole.details["parts_s"] == {"waiting": 0, "transfer": 0, "unknown": whole.value}


def test_busy_without_waiting_is_the_time_in_which_something_is_done(late: Late):
    _, expected, found = late
    steps = LATE.step_numbers
    busy = found["gpu_busy"]
    for rank in range(4):
        waits = sum(expected.exposed_parts_ns(rank, step)["waiting"] for step in steps)
        length = sum(expected.parts(rank, step).window_ns for step in steps)
        assert busy.details["per_rank_waiting_pct"][str(rank)] == pytest.approx(100 * waits / length)
    assert busy.details["busy_without_waiting_pct"] + busy.details["waiting_pct"] == pytest.approx(busy.value)


def test_devices_of_one_process_wait_for_each_other_as_members_of_recorded_groups(tmp_path: Path):
    known = values(write_run(LATE, tmp_path, style=Style(devices_in_process=2)))
    for found in results(tmp_path, "exposed_wait_time", "exposed_transfer_time"):
        assert found.value == pytest.approx(known[found.metric])


def test_the_details_of_other_metrics_divide_their_own_wholes(late: Late):
    found = late[2]
    total = found["total_communication_time"]
    assert sum(total.details["parts_s"].values()) == pytest.approx(total.value)
    for name, parts in total.details["per_collective_parts_s"].items():
        assert sum(parts.values()) == pytest.approx(total.details["per_collective_s"][name])

    share = found["communication_fraction"]
    assert sum(share.details["parts_pct"].values()) == pytest.approx(share.value)

    for row in found["traffic_distribution"].details["per_dimension"].values():
        assert row["parts_s_per_gpu_and_step"]["waiting"] > 0
        assert sum(row["parts_s_per_gpu_and_step"].values()) == pytest.approx(row["time_s_per_gpu_and_step"])

    reduced = found["bandwidth_utilization_allreduce"].details["time_parts_s"]
    assert reduced == pytest.approx(total.details["per_collective_parts_s"]["all_reduce"])


def test_compute_hides_waiting_and_transfer_each_for_itself():
    # Rank 0 waits 60 ns and moves data for 40, compute hides 45 and 10; rank 1 moves data for 20, all hidden.
    keys = {"trace": pl.Int64, "rank": pl.Int64, "iteration": pl.Int64, "step": pl.Int64}
    rows = [
        {"part": "waiting", "time_ns": 60, "exposed_ns": 15, "trace": 0},
        {"part": "transfer", "time_ns": 40, "exposed_ns": 30, "trace": 0},
        {"part": "transfer", "time_ns": 20, "exposed_ns": 0, "trace": 1},
    ]
    table = pl.DataFrame([row | {"step": 1} for row in rows], schema_overrides=keys)
    steps = pl.DataFrame(
        {
            "trace": [0, 1],
            "rank": [0, 1],
            "iteration": [None, None],
            "step": [1, 1],
            "window_ns": [200, 200],
            "communication_ns": [100, 20],
            "exposed_communication_ns": [45, 0],
        },
        schema_overrides=keys,
    )
    hidden = hidden_parts(steps, table, steps)["hidden_pct_of_part"]
    assert hidden == pytest.approx({"waiting": 75, "transfer": (25 + 100) / 2})


def test_how_much_of_transfer_is_in_messages_is_said(tmp_path: Path):
    # Only stages talk, by messages: all of it is the shorter side of one.
    write_run(Plan(pp=2, layers=2, microbatches=2, jitter_ns=500), tmp_path)
    found = measured(tmp_path, "exposed_transfer_time")
    assert found.details["of_messages_s"] == pytest.approx(found.value) != 0
    assert [finding.code for finding in found.findings] == ["messages-by-shorter-side"]
