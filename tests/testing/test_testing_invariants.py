"""What holds for every plan."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ccl_bench.testing import Copy, Expected, Experts, Host, Message, Plan, Straggler, timeline, values

durations = st.integers(0, 5_000)
messages = st.builds(Message, st.integers(1, 10_000), durations)
hosts = st.builds(
    Host,
    launch_ns=st.integers(0, 200),
    latency_ns=st.integers(0, 300),
    gap_ns=st.integers(1, 1_000),
    between_steps_ns=st.integers(0, 50),
    waits_for_device=st.booleans(),
    steps_start_together=st.booleans(),
)


@st.composite
def made_plans(draw: st.DrawFn) -> Plan:
    dp_shard, cp, tp, pp = (draw(st.integers(1, 2)) for _ in range(4))
    dp_replicate = draw(st.integers(1, 2))
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if dp_shard * cp % n == 0]))
    row = st.tuples(*[st.integers(0, 50)] * ep)
    experts = st.builds(Experts, st.tuples(*[row] * ep), st.integers(0, 20), durations)
    world = dp_shard * cp * tp * pp * dp_replicate
    slow = st.builds(Straggler, st.integers(0, world - 1), durations, durations, durations)
    per_stage = st.one_of(durations, st.tuples(*[durations] * pp))
    return Plan(
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        cp=cp,
        tp=tp,
        pp=pp,
        ep=ep,
        steps=draw(st.integers(1, 3)),
        layers=draw(st.one_of(st.integers(1, 2), st.tuples(*[st.integers(1, 2)] * pp))),
        microbatches=draw(st.integers(1, 3)),
        forward_ns=draw(per_stage),
        backward_ns=draw(per_stage),
        optimizer_ns=draw(durations),
        shard_copy_ns=draw(st.integers(0, 100)),
        prefetch=draw(st.booleans()),
        jitter_ns=draw(st.integers(0, 300)),
        seed=draw(st.integers(0, 9)),
        all_gather=draw(messages),
        reduce_scatter=draw(messages),
        gradient_all_reduce=draw(messages),
        tp_all_reduce=draw(messages),
        cp_exchange=draw(messages),
        pipeline=draw(messages),
        gradient_norm=draw(st.none() | messages),
        experts=draw(experts if ep > 1 else st.none() | experts),
        input_copy=Copy(1_000, draw(durations)),
        host=draw(hosts),
        stragglers=draw(st.lists(slow, max_size=2).map(tuple)),
    )


@settings(max_examples=60, deadline=None)
@given(made_plans())
def test_members_of_a_collective_end_together_and_the_last_one_waits_for_nobody(plan: Plan):
    expected = Expected(timeline(plan))
    for meeting in expected.meetings:
        waits = [meeting.wait_ns(rank) for rank in meeting.members]
        assert min(waits) == 0
        assert all(
            meeting.duration_ns(rank) == wait + meeting.transfer_ns
            for rank, wait in zip(meeting.members, waits, strict=True)
        )
        assert len(meeting.members) == (2 if meeting.collective == "send_recv" else meeting.group_size)


@settings(max_examples=60, deadline=None)
@given(made_plans())
def test_every_kernel_comes_after_what_it_waits_for(plan: Plan):
    made = timeline(plan)
    for records in made.steps:
        for rank, record in enumerate(records):
            last: dict[int, int] = {}
            for number, item in enumerate(made.program(rank).instructions):
                start, end = record.starts[number], record.ends[number]
                assert record.host_start_ns <= start <= end
                assert start >= last.get(item.stream, 0)
                assert all(record.ends[other] <= start for other in item.after)
                last[item.stream] = end


@settings(max_examples=60, deadline=None)
@given(made_plans())
def test_windows_tile_and_their_parts_add_up(plan: Plan):
    expected = Expected(timeline(plan))
    for rank in range(plan.world_size):
        before = None
        for step in plan.step_numbers:
            parts = expected.parts(rank, step)
            assert parts.start_ns <= parts.end_ns <= parts.window_end_ns
            divided = (
                parts.compute_ns + parts.exposed_communication_ns + parts.exposed_memory_ns + parts.idle_ns
            )
            assert divided == parts.window_ns
            assert 0 <= parts.overlap_ns <= min(parts.compute_ns, parts.communication_ns)
            if before is not None:
                assert parts.window_start_ns == max(parts.start_ns, before.window_end_ns)
            before = parts


@settings(max_examples=60, deadline=None)
@given(made_plans())
def test_a_bubble_is_part_of_the_time_without_compute(plan: Plan):
    expected = Expected(timeline(plan))
    for rank in range(plan.world_size):
        for step in plan.step_numbers:
            parts = expected.parts(rank, step)
            assert 0 <= expected.bubble_ns(rank, step) <= parts.window_ns - parts.compute_ns


@settings(max_examples=60, deadline=None)
@given(made_plans())
def test_what_is_sent_is_received(plan: Plan):
    expected = Expected(timeline(plan))
    ends: Counter[str] = Counter(
        member.name
        for meeting in expected.meetings
        if meeting.collective == "send_recv"
        for member in meeting.members.values()
    )
    assert ends["send"] == ends["recv"]
    for meeting in expected.meetings:
        if meeting.dimension == "ep":
            parts = [member.moved for member in meeting.members.values()]
            assert sum(part.in_elements for part in parts) == sum(part.out_elements for part in parts)


@settings(max_examples=60, deadline=None)
@given(made_plans())
def test_values_are_numbers_in_their_range(plan: Plan):
    found = values(Expected(timeline(plan))) if plan.forward_ns or plan.optimizer_ns else {}
    for name in ("gpu_busy", "gpu_idle", "comm_comp_overlap", "traffic_distribution"):
        assert 0 <= found.get(name, 0) <= 100.000001
    assert found.get("straggler_lag_16", 0) >= 0
