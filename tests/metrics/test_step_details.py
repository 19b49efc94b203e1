"""What metrics make of tables that real traces seldom give."""

import polars as pl
import pytest

from ccl_bench.analysis.communication.calls import DISAGREES, NO_STEP
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.metrics.coll_call_num import coll_call_num
from ccl_bench.metrics.comm_comp_overlap import comm_comp_overlap
from ccl_bench.metrics.exposed_communication_time import exposed_communication_time, exposed_wait_time
from ccl_bench.metrics.iteration_wall_clock_time import iteration_wall_clock_time
from ccl_bench.metrics.launch_overhead import launch_overhead
from ccl_bench.metrics.load_imbalance_ratio import load_imbalance_ratio
from ccl_bench.metrics.shared.checks import need_sharding
from ccl_bench.metrics.shared.per_step import (
    few_steps,
    listed_parts,
    seconds_by_step,
    share_of_steps,
)
from ccl_bench.metrics.shared.recorded_calls import recorded_lag
from ccl_bench.metrics.sm import sm
from ccl_bench.metrics.straggler_lag_16 import straggler_lag_16

KEYS = {"trace": pl.Int64, "rank": pl.Int64, "iteration": pl.Int64}


ONE_DEVICE = pl.DataFrame({"trace": [0], "rank": [0], "device": [0]})
NO_SAMPLES = pl.DataFrame(schema={"rank": pl.Int64, "samples": pl.Int64, "sm_active_pct": pl.Float64})


def rows(*records: dict) -> pl.DataFrame:
    """Return a table of records, with the columns of a run."""
    return pl.DataFrame(
        [{"trace": 0, "rank": 0, "iteration": None} | record for record in records], schema_overrides=KEYS
    )


def step(number: int, **more) -> dict:
    """Return a step found by its annotation."""
    return {"step": number, "source": "ProfilerStep", **more}


def call(number: int | None, **more) -> dict:
    """Return an all-reduce that starts in a step."""
    return {"step": number, "collective": "all_reduce", **more}


def breakdown(window: int, compute: int, communication: int, overlap: int, busy: int, **more) -> dict:
    """Return where the time of one step went, ns."""
    return {
        "step": 0,
        "window_ns": window,
        "compute_ns": compute,
        "communication_ns": communication,
        "overlap_ns": overlap,
        "exposed_communication_ns": communication - overlap,
        "exposed_memory_ns": busy - compute - communication + overlap,
        "busy_ns": busy,
        "idle_ns": window - busy,
        **more,
    }


def test_exposed_communication_is_a_share_of_the_step_and_of_communication():
    # 40 of 50 ns are exposed in a step of 100 ns on one rank, 10 of 40 ns in one of 200 ns on the other.
    table = rows(
        breakdown(window=100, compute=30, communication=50, overlap=10, busy=70),
        breakdown(window=200, compute=90, communication=40, overlap=30, busy=100, trace=1, rank=1),
    )
    steps = rows(step(0), step(0, trace=1, rank=1))
    calls = pl.DataFrame(
        {"rank": [0, 1], "collective": ["all_reduce", "all_gather"], "start_ns": [0, 5], "end_ns": [40, 15]}
    )
    found = exposed_communication_time(table, calls, steps)
    assert found.value == pytest.approx((40 + 10) / 2 / 1e9)
    assert found.details["pct_of_step"] == pytest.approx((40 + 5) / 2)
    assert found.details["pct_of_communication"] == pytest.approx((80 + 25) / 2)
    assert found.details["per_collective_s"] == pytest.approx({"all_reduce": 20e-9, "all_gather": 5e-9})

    overlap = comm_comp_overlap(table, steps)
    assert overlap.value == pytest.approx((20 + 75) / 2)
    assert overlap.details["exposed_communication_pct_of_step"] == pytest.approx((40 + 5) / 2)
    assert overlap.details["exposed_communication_s_per_step"] == pytest.approx(25e-9)


def test_the_share_of_each_step_is_the_mean_over_its_ranks():
    table = rows(
        breakdown(window=100, compute=30, communication=0, overlap=0, busy=30),
        breakdown(window=400, compute=40, communication=0, overlap=0, busy=40, trace=1, rank=1),
        breakdown(window=200, compute=150, communication=0, overlap=0, busy=150, step=1),
        breakdown(window=0, compute=0, communication=0, overlap=0, busy=0, trace=1, rank=1, step=1),
        breakdown(window=1, compute=1, communication=0, overlap=0, busy=1, trace=2, rank=2, step=2),
        breakdown(window=0, compute=0, communication=0, overlap=0, busy=0, trace=3, rank=3, step=2),
    )
    found = share_of_steps(table, rows(step(0), step(1)), "compute_ns")
    assert found.details["per_step_pct"] == pytest.approx({"0": (30 + 10) / 2, "1": 75, "2": 100})
    assert found.details["per_rank_pct"] == pytest.approx({"0": 100 * 180 / 300, "1": 10, "2": 100})
    assert found.value == pytest.approx((60 + 10 + 100) / 3)


def test_the_imbalance_of_each_step_is_the_busiest_rank_over_the_mean():
    computed = {(0, 0): 30, (1, 0): 50, (0, 1): 60, (1, 1): 20, (0, 2): 0, (1, 2): 0}
    table = rows(
        *(
            breakdown(
                100, compute=ns, communication=0, overlap=0, busy=ns, trace=rank, rank=rank, step=number
            )
            for (rank, number), ns in computed.items()
        )
    )
    steps = rows(*(step(number, trace=rank, rank=rank) for rank, number in computed))
    found = load_imbalance_ratio(table, steps)
    # 90 ns of 3 steps on rank 0 and 70 ns on rank 1; in step 2 nothing computed
    assert found.value == pytest.approx(90 / ((90 + 70) / 2))
    assert found.details["busiest_rank"] == "0"
    assert found.details["max_s"] == pytest.approx(30e-9)
    assert found.details["mean_s"] == pytest.approx((90 + 70) / 2 / 3 * 1e-9)
    assert found.details["min_s"] == pytest.approx(70 / 3 * 1e-9)
    assert found.details["per_step_ratio"] == pytest.approx({"0": 50 / 40, "1": 60 / 40})


def test_a_step_without_rows_took_no_time():
    steps = rows(step(1), step(2), step(1, trace=1, rank=1), step(2, trace=1, rank=1))
    table = rows({"step": 1, "ns": 6}, {"step": 1, "ns": 4}, {"step": 1, "ns": 20, "trace": 1, "rank": 1})
    assert seconds_by_step(table, steps, "ns") == {"1": pytest.approx((10 + 20) / 2 / 1e9), "2": 0}


@pytest.mark.parametrize(("fused", "listed"), [([0, 1], True), ([0, 0], False), ([], False)])
def test_fused_time_is_a_part_of_steps_if_any_step_has_it(fused, listed):
    table = pl.DataFrame({"fused_ns": fused}) if fused else pl.DataFrame({"idle_ns": [1]})
    assert listed_parts(table) == [
        *("compute", *["fused"] * listed, "exposed_communication", "exposed_memory", "idle", "window")
    ]


@pytest.mark.parametrize(("steps", "every"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2), (2001, 3)])
def test_of_more_than_a_thousand_steps_every_second_is_listed(steps, every):
    assert few_steps(pl.DataFrame({"step": range(steps)}))["step"].to_list() == [*range(0, steps, every)]


def test_a_step_without_calls_counts_as_a_step():
    found = coll_call_num(rows(call(1), call(1), call(None)), rows(step(1), step(2)))

    assert found.value == 2 / 2
    assert found.details["per_step"] == {"1": 2, "2": 0}


def test_windows_that_repeat_step_numbers_are_distinguished():
    calls = rows(call(1, iteration=10), call(1, iteration=20, trace=1), call(1, iteration=20, trace=1))
    steps = rows(step(1, iteration=10), step(1, iteration=20, trace=1))

    found = coll_call_num(calls, steps)

    assert found.details["per_step"] == {"10:1": 1, "20:1": 2}
    assert found.value == (1 + 2) / 2


def test_traces_of_no_known_rank_are_averaged_and_say_so():
    calls = rows(call(1, rank=None), call(1, rank=None), call(1, rank=None, trace=1))
    steps = rows(step(1, rank=None), step(1, rank=None, trace=1))

    found = coll_call_num(calls, steps)

    assert found.value == (2 + 1) / 2
    assert found.details["rank"] == "unknown"
    assert found.ranks == []


def test_a_lowest_rank_without_a_call_is_no_silent_zero():
    with pytest.raises(NotMeasurable, match="lowest rank, 0, holds no communication"):
        coll_call_num(rows(call(1, rank=1, trace=1)), rows(step(1), step(1, rank=1, trace=1)))


def test_no_call_in_any_step_is_no_silent_zero():
    with pytest.raises(NotMeasurable, match="no communication was recognised"):
        coll_call_num(rows(call(None)).clear(), rows(step(1)))


def test_calls_outside_of_all_steps_are_no_missing_communication():
    with pytest.raises(NotMeasurable, match="recorded only outside the steps: 1 call\n"):
        coll_call_num(rows(call(None)), rows(step(1)))


def test_step_times_of_windows_that_repeat_step_numbers_all_count():
    times = rows(
        step(1, iteration=10, duration_ns=100, host_ns=90),
        step(1, iteration=20, duration_ns=300, host_ns=60),
        step(2, iteration=20, duration_ns=500, host_ns=600),
    )

    found = iteration_wall_clock_time(times)

    assert found.details["per_step_s"] == {"10:1": 1e-7, "20:1": 3e-7, "20:2": 5e-7}
    assert found.value == pytest.approx(3e-7)
    assert found.details["host_range_s"] == pytest.approx((90 + 60 + 600) / 3 * 1e-9)


def test_the_slowest_rank_of_each_step_counts_and_not_the_slowest_mean():
    times = rows(
        step(1, duration_ns=100, host_ns=80), step(2, duration_ns=400, host_ns=50),
        step(1, rank=1, duration_ns=300, host_ns=70), step(2, rank=1, duration_ns=100, host_ns=90),
    )  # fmt: skip

    found = iteration_wall_clock_time(times)

    assert found.value == pytest.approx((300 + 400) / 2 * 1e-9)
    assert found.details["slowest_rank"] == [1, 0]


def test_overlap_is_summed_over_steps_before_it_is_divided():
    # 10 of 20 and 0 of 80 are 10 of 100, not the mean of 50 % and 0 %
    found = comm_comp_overlap(
        rows(breakdown(100, 50, 20, 10, 60), breakdown(100, 0, 80, 0, 80)), rows(step(0))
    )

    assert found.value == pytest.approx(10.0)


def test_overlap_is_a_mean_over_ranks_whatever_their_time():
    # rank 0: 10 of 20, rank 1: 10 of 100
    table = rows(breakdown(200, 50, 20, 10, 60), breakdown(200, 50, 100, 10, 140, rank=1, trace=1))

    assert comm_comp_overlap(table, rows(step(0))).value == pytest.approx((50 + 10) / 2)


def test_a_rank_that_does_not_communicate_has_no_overlap_to_average():
    table = rows(breakdown(200, 50, 20, 10, 60), breakdown(200, 50, 0, 0, 50, rank=1, trace=1))

    found = comm_comp_overlap(table, rows(step(0)))

    assert found.value == pytest.approx(50.0)
    assert found.ranks == [0]


def test_steps_without_length_give_no_share():
    with pytest.raises(NotMeasurable, match="steps of any length"):
        share_of_steps(rows(breakdown(0, 0, 0, 0, 0)), rows(step(0)), "busy_ns")


def use(window: int, occupied: float, kernels: int, **more) -> dict:
    """Return how the multiprocessors were used in one step, compute only."""
    return {
        "step": 0,
        "window_ns": window,
        "occupied_ns": occupied,
        "compute_occupied_ns": occupied,
        "communication_occupied_ns": 0.0,
        "kernel_ns": window if kernels else 0,
        "occupancy_pct": 50.0 if kernels else None,
        "occupancy_weight_ns": window if kernels else 0,
        "rated_kernels": kernels,
        "kernels": kernels,
        **more,
    }


def test_a_step_without_kernels_leaves_the_multiprocessors_unused():
    # 80 of 100 in one step and none of 100 in the other
    found = sm(rows(use(100, 80.0, 3), use(100, 0.0, 0)), NO_SAMPLES, rows(step(0)), ONE_DEVICE)

    assert found.value == pytest.approx(40.0)
    assert found.details["estimated_achieved_occupancy_pct"] == 50.0


def test_occupancy_of_steps_is_weighted_by_the_time_of_their_kernels():
    table = rows(
        use(100, 80.0, 3, occupancy_pct=10.0, occupancy_weight_ns=300),
        use(100, 80.0, 1, occupancy_pct=50.0, occupancy_weight_ns=100),
    )

    # (10 x 300 + 50 x 100) / 400
    details = sm(table, NO_SAMPLES, rows(step(0)), ONE_DEVICE).details
    assert details["estimated_achieved_occupancy_pct"] == pytest.approx(20.0)


def test_kernels_without_a_recorded_occupancy_leave_that_detail_out():
    table = rows(use(100, 80.0, 3, occupancy_weight_ns=0) | {"occupancy_pct": None})
    found = sm(
        table.with_columns(pl.col("occupancy_pct").cast(pl.Float64)), NO_SAMPLES, rows(step(0)), ONE_DEVICE
    )

    assert "estimated_achieved_occupancy_pct" not in found.details


def test_launching_is_divided_by_what_was_launched():
    first = {"launches": 8, "fruitless": 2, "call_ns": 400, "window_ns": 1000, "delay_ns": 600}
    first |= {"idle_launches": 1, "unlaunched": 1, "work": 5, "graph_launches": 3, "queue_peak": 4}
    table = rows(
        {"step": 0, "idle_delay_ns": 30.0, **first},
        {"step": 1, "idle_delay_ns": 50.0, **first, "queue_peak": 9},
    )
    found = launch_overhead(table, rows(step(0), step(1)))
    assert found.value == pytest.approx(400e-9)
    expected = {
        "pct_of_step": 40, "launches_per_step": 8, "mean_call_s": 50e-9, "delay_s": 100e-9,
        "idle_stream_latency_s": 40e-9, "idle_stream_launches_per_step": 1, "queue_peak": 9,
        "launches_without_work": 4, "work_without_launch": 2, "work_with_launch_ratio": 0.8,
        "cuda_graph_launches": 6,
    }  # fmt: skip
    assert {name: found.details[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("degree", "error"), [(1, NotApplicable), (2, NotMeasurable), (None, NotApplicable)])
def test_a_run_that_is_stated_to_shard_lacks_its_ranges(degree, error):
    stated = Facts(dp_shard=Fact(degree, "card")) if degree else Facts()
    with pytest.raises(error):
        need_sharding(pl.DataFrame({"host_ns": []}), rows(step(0)), stated)


def test_the_lag_from_a_flight_recorder_is_the_spread_of_what_ranks_waited():
    # rank 0 waits 10 to 30 and 20 to 40, together 30 ns; rank 1 50 to 60; rank 2 70 to 75
    spans = {0: [(10, 30), (20, 40)], 1: [(50, 60)], 2: [(70, 75)]}
    arrivals = pl.DataFrame(
        [
            {"rank": rank, "number": 1, "sequence": place, "start_ns": start, "end_ns": end}
            | {"lateness_ns": 10 * rank, "clock_error_ns": 5, "clock_shift_ns": -2}
            for rank, each in spans.items()
            for place, (start, end) in enumerate(each)
        ]
    )
    found = recorded_lag(arrivals, Facts())
    assert found.lag_s == pytest.approx((30 - 5) / 1e9)
    assert (found.recorded_s, found.slowest_rank) == (pytest.approx((75 - 10) / 1e9), "2")
    assert found.wait_s == pytest.approx({"0": 30e-9, "1": 10e-9, "2": 5e-9})
    assert found.lateness_s == pytest.approx({"0": 0, "1": 10e-9, "2": 20e-9})
    with pytest.raises(NotMeasurable, match="fewer than two calls"):
        recorded_lag(arrivals.filter(pl.col("sequence") == 0), Facts())


@pytest.mark.parametrize(("complete", "said"), [((True, True), True), ((True, False), False)])
def test_a_lag_says_whether_all_members_were_recorded(complete, said):
    both = [
        {"step": 0, "group": "g", "dimension": "tp", "trace": rank, "rank": rank, "collectives": 1}
        | {"wait_ns": wait, "arrived_last": int(not wait), "caused_ns": 0, "complete": complete[rank]}
        for rank, wait in ((0, 0), (1, 40))
    ]
    steps = rows(step(0, start_ns=0, end_ns=100), step(0, trace=1, rank=1, start_ns=0, end_ns=100))
    found = straggler_lag_16(rows(*both), steps)
    assert found.value == pytest.approx(40e-9)
    assert found.details["wait_s_per_step"] == pytest.approx({"0": 0, "1": 40e-9})
    assert found.details["members_complete"] is said


def wait_of(exposed: int, unknown: dict[str, int], messages: int = 0):
    """Return the wait of a step of 4,000 ns in which so much communication is exposed or unknown.

    What is neither unknown nor in messages is transfer of an all-reduce, 100 ns of waiting apart.
    """
    known = {("waiting", "all_reduce"): 100 - messages, ("waiting", "send"): messages}
    known["transfer", "all_reduce"] = exposed - 100 - sum(unknown.values())
    parts = [(part, name, None, ns) for (part, name), ns in known.items()]
    parts += [("unknown", "all_reduce", reason, ns) for reason, ns in unknown.items()]
    table = rows(
        *(
            {"step": 0, "part": part, "collective": name, "dimension": "tp", "reason": reason}
            | {"exposed_ns": ns, "time_ns": ns}
            for part, name, reason, ns in parts
        )
    ).cast({"reason": pl.String})
    whole = rows(breakdown(4000, compute=0, communication=exposed, overlap=0, busy=exposed))
    return exposed_wait_time(whole, table, rows(step(0)))


@pytest.mark.parametrize(
    ("unknown", "codes"), [(9, []), (10, ["waiting-unknown"]), (500, ["waiting-unknown"])]
)
def test_from_a_hundredth_of_unknown_communication_is_a_finding(unknown, codes):
    found = wait_of(1000, {NO_STEP: unknown})
    assert found.value == pytest.approx(100e-9)
    assert [each.code for each in found.findings] == codes
    assert found.details["unknown_because_s"] == pytest.approx({NO_STEP: unknown * 1e-9})
    assert found.details["pct_of_step"] == pytest.approx(100 * 100 / 4000)
    assert found.details["per_collective_s"] == pytest.approx({"all_reduce": 100e-9})


def test_more_than_half_unknown_communication_gives_no_value_and_the_fix_of_the_larger_reason():
    with pytest.raises(NotMeasurable, match=f"50.1 % .*: {DISAGREES}") as refused:
        wait_of(1000, {NO_STEP: 250, DISAGREES: 251})
    assert "one run" in refused.value.fix


@pytest.mark.parametrize(("messages", "codes"), [(0, []), (9, []), (11, ["messages-by-shorter-side"])])
def test_from_a_hundredth_of_exposed_communication_waits_in_messages_are_a_finding(messages, codes):
    found = wait_of(1000, {}, messages)
    assert [each.code for each in found.findings] == codes
    assert found.details["of_messages_s"] == pytest.approx(messages * 1e-9)


def test_communication_that_is_hidden_whole_has_neither_waits_nor_findings():
    hidden = rows(breakdown(100, compute=50, communication=50, overlap=50, busy=50))
    part = {"step": 0, "part": "waiting", "collective": "all_reduce", "dimension": "tp", "reason": ""}
    table = rows(part | {"exposed_ns": 0, "time_ns": 50})
    found = exposed_wait_time(hidden, table, rows(step(0)))
    assert (found.value, found.findings) == (0, [])
    assert found.details["per_collective_s"] == {}
