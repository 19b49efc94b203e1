"""Parts of a step of a pipeline stage, by rules on tables."""

import polars as pl
import pytest
from cross_runs import call, facts, frame

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.pipeline import theoretical_bubble_fraction


def test_a_stage_that_runs_all_forward_passes_first_has_nothing_steady():
    steps = frame("steps", [{"step": 1, "device_start_ns": 0, "device_end_ns": 100}])
    phases = frame(
        "phases",
        [
            {"step": 1, "phase": "forward", "start_ns": 10, "end_ns": 40},
            {"step": 1, "phase": "backward", "start_ns": 60, "end_ns": 90},
        ],
    )
    found = DERIVED.get("stage_parts").compute(steps, phases)
    assert found.select("part", "start_ns", "end_ns").rows() == [
        ("warm-up", 0, 60),
        ("steady", 60, 60),
        ("cool-down", 60, 100),
    ]


def test_a_message_across_two_parts_is_one_message():
    parts = [
        {
            "step": 1,
            "part": part,
            "trace": 0,
            "rank": 0,
            "window_ns": 50,
            "compute_ns": 0,
            "exposed_collectives_ns": 0,
            "exposed_messages_ns": 40,
        }
        for part in ("warm-up", "steady")
    ]
    stretches = [
        {
            "step": 1,
            "part": part,
            "trace": 0,
            "rank": 0,
            "call": 3,
            "start_ns": start,
            "end_ns": start + 40,
            "call_end_ns": 90,
        }
        for part, start in (("warm-up", 10), ("steady", 50))
    ]
    lone = frame("messages", [])
    compute = DERIVED.get("bubbles").compute
    [row] = compute(
        frame("stage_time", parts), frame("exposed_messages", stretches), lone, facts()
    ).to_dicts()
    assert (row["unmatched"], row["bubble_ns"], row["message_wait_ns"]) == (1, 100, 80)
    both = frame(
        "messages", [{"send_trace": 0, "send_call": 3, "recv_trace": 1, "recv_call": 3, "transfer_ns": 45}]
    )
    [row] = compute(
        frame("stage_time", parts), frame("exposed_messages", stretches), both, facts()
    ).to_dicts()
    # the last 45 ns of the call, from 45 to 90, are transfer: 5 in the first part, 40 in the second
    assert (row["unmatched"], row["exposed_transfer_ns"], row["bubble_ns"]) == (0, 45, 55)
    assert (row["warm_up_ns"], row["steady_ns"]) == (45, 10)


def test_ranks_beyond_the_mesh_have_no_stage():
    rows = [
        {
            "step": 1,
            "part": "whole",
            "trace": r,
            "rank": r,
            "window_ns": 1,
            "compute_ns": 0,
            "exposed_collectives_ns": 0,
            "exposed_messages_ns": 0,
        }
        for r in (0, 1, 2)
    ]
    empty = frame("exposed_messages", []), frame("messages", [])
    found = DERIVED.get("bubbles").compute(frame("stage_time", rows), *empty, facts(world_size=2, pp=2))
    assert found["stage"].to_list() == [0, 1, None]


@pytest.mark.parametrize(
    ("schedule", "chunks", "share"),
    [
        ("1F1B", None, 3 / 11),
        ("GPipe", None, 3 / 11),
        ("Interleaved1F1B", 2, 3 / 19),
        ("ZBVZeroBubble", None, None),
    ],
)
def test_theory_is_that_of_the_stated_schedule(schedule: str, chunks: int | None, share: float | None):
    known = {"virtual_stages": chunks} if chunks else {}
    found = theoretical_bubble_fraction(facts(pp=4, microbatches=8, pp_schedule=schedule, **known))
    assert (found and found[0]) == (share and pytest.approx(share))


@pytest.mark.parametrize("unknown", ["pp", "microbatches", "pp_schedule"])
def test_without_stages_microbatches_or_schedule_there_is_no_theory(unknown: str):
    stated = {"pp": 4, "microbatches": 8, "pp_schedule": "1F1B"}
    assert theoretical_bubble_fraction(facts(**stated)) == (3 / 11, "(p-1)/(m+p-1)")
    assert theoretical_bubble_fraction(facts(**{k: v for k, v in stated.items() if k != unknown})) is None


def test_messages_hidden_under_compute_are_not_exposed():
    steps = frame("steps", [{"step": 1, "device_start_ns": 0, "device_end_ns": 100, "length_ns": 100}])
    parts = frame("stage_parts", [{"step": 1, "part": "whole", "start_ns": 0, "end_ns": 100}])
    work = frame("work", [{"start_ns": 0, "end_ns": 60, "kind": "compute"}])
    calls = frame("calls", [call(0, 1, 40, 80, collective="recv", peer=1)])
    [row] = DERIVED.get("stage_time").compute(steps, parts, work, calls).to_dicts()
    assert (row["compute_ns"], row["exposed_messages_ns"], row["exposed_collectives_ns"]) == (60, 20, 0)
    exposed = DERIVED.get("exposed_messages").compute(parts, work, calls)
    assert exposed.select("start_ns", "end_ns", "call_end_ns").rows() == [(60, 80, 80)]
    assert isinstance(exposed, pl.DataFrame)


def test_what_a_step_is_longer_than_its_window_is_bubble_of_its_first_part():
    windows = [(1, 0, 100, 110), (2, 100, 200, 100)]
    names = ("step", "device_start_ns", "device_end_ns", "length_ns")
    steps = frame("steps", [dict(zip(names, row, strict=True)) for row in windows])
    rows = [(1, "warm-up", 0, 0), (1, "steady", 0, 70), (1, "cool-down", 70, 100), (2, "whole", 100, 200)]
    names = ("step", "part", "start_ns", "end_ns")
    parts = frame("stage_parts", [dict(zip(names, row, strict=True)) for row in rows])
    work = frame("work", [{"start_ns": 10, "end_ns": 60, "kind": "compute"}])
    found = DERIVED.get("stage_time").compute(steps, parts, work, frame("calls", []))
    # the host was 10 ns behind before the window of step 1
    assert found.select("step", "part", "window_ns", "compute_ns").rows() == [
        (1, "warm-up", 10, 0), (1, "steady", 70, 50), (1, "cool-down", 30, 0), (2, "whole", 100, 0),
    ]  # fmt: skip
