"""Waiting and idle time in a report: they agree with the verdict, and with the lag of stragglers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from observations import looked, made, missing, ok, quantity, rows

from ccl_bench.report.context import context_of
from ccl_bench.report.formatting import duration
from ccl_bench.report.sections.steps import time_breakdown
from ccl_bench.report.sections.waiting import waiting
from ccl_bench.result import Result, ResultFinding
from ccl_bench.result.diagnosis import Diagnosed, IdlePart, Verdict, Waiting
from ccl_bench.result.report_data import Grid, TimeParts


def waiting_of(
    latest: float, of_all: float, *results: Result, late: str = "0", share: float = 0.25, **more: Any
) -> Any:
    """Return notes on waiting of a run with steps of 1 s, in which rank 0 is latest, for these gains in s."""
    parts = {"compute": 0.5, "waiting": share, "transfer": 0.0, "copies": 0.0, "idle": 0.25}
    breakdown = Verdict(1.0, parts, ranks=4, steps=3, on_device=True)
    found = Diagnosed("runs/one", breakdown, waiting=Waiting([0], [1], latest, of_all), **more)
    lag = ok(
        "straggler", 0.2, "ratio", late_ranks=[] if late == "none" else [late], slowest_rank=late,
        straggler_lag_s=0.2, noise_floor_ratio=0.01,
    )  # fmt: skip
    observed = replace(made(*(results or (lag,)), waits=Grid(["0"], ["1"], [[0.1]])), diagnosed=found)
    return waiting(context_of(observed)).notes[-1]


WAITS_FOR = "Ranks wait 25 % of the step for others. Rank 0 is latest"


ALONE = "One rank alone gains less, because others are nearly as late, or late at other times."
NO_GAIN = (
    "The lag of 200 ms is how much less rank 0 waits than the rank that waits most; a step would not gain as "
    "much."
)
OTHER_RANK = (
    "The lag names rank 3, which waits least in collectives; over all calls and messages, rank 0 is late for "
    "more time."
)
NO_RANK = "The lag names no rank: ranks do not differ enough in how long they wait in collectives."


@pytest.mark.parametrize(
    ("latest", "of_all", "late", "said"),
    [
        (0.15, 0.2, "0", ""),
        (0.1, 0.4, "0", ALONE),
        (0.1, 0.1, "0", ""),
        (0.099, 0.1, "0", NO_GAIN),
        (0.099, 0.2, "0", f"{ALONE} {NO_GAIN}"),
        (0.15, 0.2, "3", OTHER_RANK),
        (0.0099, 0.011, "none", ""),
        (0.01, 0.011, "none", NO_RANK),
    ],
)
def test_who_waits_is_joined_with_what_the_step_gains(
    latest: float, of_all: float, late: str, said: str
) -> None:
    begin = (
        f"{WAITS_FOR}: with the times of the other ranks, a step would be {duration(latest)} shorter; "
        f"if all ranks took the median of their times, {duration(of_all)}."
    )
    assert waiting_of(latest, of_all, late=late) == f"{begin} {said}".strip()


def test_the_rank_alone_gains_less_below_half_of_what_all_gain() -> None:
    assert ALONE not in waiting_of(0.2, 0.4)
    assert ALONE in waiting_of(0.199, 0.4)


def test_waiting_that_equal_ranks_would_not_shorten_is_by_design() -> None:
    assert waiting_of(0.0, 0.0049) == (
        f"{WAITS_FOR}, but a step would hardly gain if all ranks took the median of their times. {NO_GAIN}"
    )
    assert "hardly" not in waiting_of(0.0, 0.005)


def test_waiting_that_the_lag_leaves_out_is_said_with_its_time() -> None:
    found = ok(
        "straggler", 0.01, "ratio", late_ranks=["0"], slowest_rank="0", straggler_lag_s=0.01,
        noise_floor_ratio=0.01, waiting_elsewhere_s={"broadcast": 0.2},
    )  # fmt: skip
    said = "The lag leaves out waiting in other calls: broadcast 200 ms a step, mean over ranks."
    assert said not in waiting_of(0.2, 0.2, found)
    finding = ResultFinding("waiting-elsewhere", "warning", "much")
    assert waiting_of(0.2, 0.2, replace(found, findings=[finding])).startswith(f"{said} {WAITS_FOR}")


def test_waiting_is_shown_where_no_collective_shows_it() -> None:
    why = missing("straggler", "no symmetric collective")
    parts = {"compute": 0.5, "waiting": 0.25, "transfer": 0.0, "copies": 0.0, "idle": 0.25}
    breakdown = Verdict(1.0, parts, ranks=4, steps=3, on_device=True)
    found = Diagnosed("runs/one", breakdown, waiting=Waiting([0], [1], 0.2, 0.2))
    observed = replace(made(why), diagnosed=found)
    section = waiting(context_of(observed))
    assert (section.absent, section.about) == ("", "Not measurable: no symmetric collective.")
    assert section.notes[0].startswith(WAITS_FOR)
    assert waiting(context_of(replace(observed, diagnosed=None))).absent == section.about


@pytest.mark.parametrize(("late", "who"), [("2", "Rank 2"), ("none", "On average, each of them")])
def test_late_ranks_without_a_slowest_one_are_named_together(late: str, who: str) -> None:
    cause = {"kind": "host", "excess_s": {"host": 0.004}}
    found = ok("straggler", 0.1, "ratio", late_ranks=["1", "2"], slowest_rank=late, cause=cause)
    notes = waiting(looked(found)).notes
    assert ("none" in notes[0]) is False
    assert notes[1].startswith(f"{who} leaves its device idle 4 ms longer")


def test_idle_time_is_shown_by_what_hosts_did_and_adds_up() -> None:
    parts = {"compute": 0.5, "waiting": 0.0, "transfer": 0.0, "copies": 0.0, "idle": 0.5}
    idle = [
        IdlePart("data loading", 0.375, "next(loader)"),
        IdlePart("launching", 0.1249),
        IdlePart("unknown", 1e-4),
    ]
    breakdown = Verdict(1.0, parts, ranks=1, steps=3, on_device=True, idle=idle)
    busy = {"compute": 1.0, "exposed_communication": 0.0, "exposed_memory": 0.0, "idle": 1.0, "window": 2.0}
    observed = made(
        ok("gpu_busy", 50.0, "%", per_rank_parts_s_per_step={"0": busy}),
        time_parts=[TimeParts("0", 2.0, 1.0, 0.0, 0.0, 1.0)],
    )
    assert time_breakdown(context_of(observed)).tables == ()
    shown_run = replace(observed, diagnosed=Diagnosed("runs/one", breakdown))
    [shown] = time_breakdown(context_of(shown_run)).tables
    assert rows(shown) == [
        ["in data loading", "next(loader)", "37.50 %"],
        ["while hosts launch call after call", "", "12.49 %"],
        ["for an unknown reason", "", "0.01 %"],
        ["together", "", "50.00 %"],
    ]
    shares = [quantity(row[2]).value for row in shown.rows]
    assert sum(shares[:-1]) == pytest.approx(shares[-1])
    on_threads = replace(breakdown, idle=[], on_device=False)
    assert time_breakdown(context_of(replace(observed, diagnosed=Diagnosed("", on_threads)))).tables == ()
