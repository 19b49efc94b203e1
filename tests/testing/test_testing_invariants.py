"""What holds for every plan."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from made_plans import made_plans

from ccl_bench.testing import Expected, Plan, timeline, values


@settings(max_examples=12, deadline=None)
@given(made_plans())
def test_members_of_a_collective_end_together_and_the_last_one_waits_for_nobody(plan: Plan):
    expected = Expected(timeline(plan))
    for operation in expected.operations:
        waits = [operation.wait_ns(rank) for rank in operation.members]
        assert min(waits) == 0
        assert all(
            operation.duration_ns(rank) == wait + operation.transfer_ns
            for rank, wait in zip(operation.members, waits, strict=True)
        )
        assert len(operation.members) == (2 if operation.collective == "send_recv" else operation.group_size)


@settings(max_examples=12, deadline=None)
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


@settings(max_examples=12, deadline=None)
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
            assert divided == parts.window_ns == parts.window_end_ns - parts.window_start_ns
            assert 0 <= parts.overlap_ns <= min(parts.compute_ns, parts.communication_ns)
            if before is not None:
                assert parts.window_start_ns == max(parts.start_ns, before.window_end_ns)
            before = parts


@settings(max_examples=12, deadline=None)
@given(made_plans())
def test_a_bubble_is_part_of_the_time_without_compute(plan: Plan):
    expected = Expected(timeline(plan))
    for rank in range(plan.world_size):
        for step in plan.step_numbers:
            parts = expected.parts(rank, step)
            assert 0 <= expected.bubble_ns(rank, step) <= parts.window_ns - parts.compute_ns


@settings(max_examples=12, deadline=None)
@given(made_plans())
def test_what_is_sent_is_received(plan: Plan):
    expected = Expected(timeline(plan))
    ends: Counter[str] = Counter(
        member.name
        for operation in expected.operations
        if operation.collective == "send_recv"
        for member in operation.members.values()
    )
    assert ends["send"] == ends["recv"]
    for operation in expected.operations:
        if operation.dimension == "ep":
            parts = [member.moved for member in operation.members.values()]
            assert sum(part.in_elements for part in parts) == sum(part.out_elements for part in parts)


@settings(max_examples=12, deadline=None)
@given(made_plans())
def test_values_are_numbers_in_their_range(plan: Plan):
    found = values(Expected(timeline(plan))) if plan.forward_ns or plan.optimizer_ns else {}
    for name in ("gpu_busy", "gpu_idle", "comm_comp_overlap", "traffic_distribution"):
        assert 0 <= found.get(name, 0) <= 100.000001
    assert found.get("straggler_lag_16", 0) >= 0
