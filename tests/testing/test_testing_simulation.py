"""Small plans whose timeline is worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from ccl_bench.base.errors import UsageError
from ccl_bench.testing import (
    Copy,
    Expected,
    Experts,
    Host,
    Mesh,
    Message,
    Plan,
    Straggler,
    even_bubble_fraction,
    lag_ns,
    message_bytes,
    one_forward_one_backward,
    plans,
    timeline,
    values,
    waits_in_groups,
)

FREE = plans.IDEAL_HOST


def expected(plan: Plan) -> Expected:
    return Expected(timeline(plan))


def test_two_ranks_by_hand():
    # gather, forward, gather, backward, reduce, optimizer, one after the other
    parts = expected(plans.two_ranks()).parts(0, 1)
    host_ns = parts.end_ns - parts.start_ns
    assert host_ns == parts.window_ns == 100_000 + 400_000 + 100_000 + 600_000 + 200_000 + 50_000
    assert parts.compute_ns == 400_000 + 600_000 + 50_000
    assert parts.communication_ns == parts.exposed_communication_ns == 100_000 + 100_000 + 200_000
    assert (parts.overlap_ns, parts.exposed_memory_ns, parts.idle_ns) == (0, 0, 0)


def test_two_ranks_move_what_the_plan_says():
    made = expected(plans.two_ranks())
    # 2,000,000 elements: twice gathered in bf16, once reduced in fp32
    assert made.bytes_by_collective(0, 1) == {"all_gather": 2 * 4_000_000, "reduce_scatter": 8_000_000}
    assert made.bytes_by_dimension(1, 2) == {"dp_shard": 16_000_000}

    gather, _, reduce = made.operations[:3]
    assert gather.members[0].moved.in_elements == 1_000_000
    assert gather.members[0].moved.out_elements == 2_000_000
    assert (reduce.members[1].moved.in_elements, reduce.members[1].moved.out_elements) == (
        2_000_000,
        1_000_000,
    )
    # 4 MB in 100 us = 40 GB/s; (n - 1) / n of it on the bus
    assert gather.algorithm_bandwidth_gb_per_s(0) == pytest.approx(40.0)
    assert gather.bus_bandwidth_gb_per_s(0) == pytest.approx(20.0)


def test_the_group_of_all_ranks_is_that_of_the_only_dimension():
    norm = Message(1, 8, "Float")
    alone = expected(Plan(tp=4, gradient_norm=norm)).bytes_by_dimension(0, 2)
    both = expected(Plan(dp_shard=2, tp=2, gradient_norm=norm)).bytes_by_dimension(0, 2)
    assert set(alone) == {"tp"}
    assert set(both) == {"dp_shard", "tp", "world"}


def test_a_late_rank_makes_the_other_wait():
    plan = Plan(
        tp=2,
        steps=1,
        layers=1,
        forward_ns=1_000,
        backward_ns=2_000,
        optimizer_ns=0,
        input_copy=Copy(0, 0),
        tp_all_reduce=Message(100, 30),
        host=FREE,
        stragglers=(Straggler(1, layer_ns=500),),
    )
    made = expected(plan)
    first, *others = made.operations
    # first half of the forward pass: 55 % of 1,000 ns on rank 0, 500 ns more on rank 1
    assert first.members[0].start_ns == 550
    assert first.members[1].start_ns == 1_050
    assert first.end_ns == 1_050 + 30
    assert (first.wait_ns(0), first.wait_ns(1)) == (500, 0)
    assert [operation.wait_ns(rank) for operation in others for rank in (0, 1)] == [0] * 6
    assert lag_ns(made, 1) == 500


def test_the_worked_check_of_bandwidth():
    made = expected(plans.late_rank())
    gather = next(m for m in made.operations if m.collective == "all_gather")
    assert gather.bytes(0) == 16 * 2**20
    assert gather.algorithm_bandwidth_gb_per_s(0) == pytest.approx(167.77, abs=0.005)
    assert gather.bus_bandwidth_gb_per_s(0) == pytest.approx(146.80, abs=0.005)


def test_the_late_rank_waits_least():
    made = expected(plans.late_rank(50_000))
    # late in the gathers of layers 1, 2, 3 and in the first gather of the backward pass
    assert [made.wait_ns(rank, 1) for rank in range(8)] == [200_000] * 3 + [0] + [200_000] * 4
    assert values(made)["straggler_lag_16"] == pytest.approx(200e-6)


def test_waits_go_to_the_group_they_were_waited_in():
    plan = Plan(dp_shard=2, tp=2, steps=1, stragglers=(Straggler(3, step_ns=9_000),))
    waits = waits_in_groups(expected(plan), 1)
    names = {group.name: group.description for group in Mesh(plan).groups}
    # rank 2 waits for rank 3 in their first all_reduce; ranks 0 and 1 wait for both in the next gather
    assert {names[group]: None for group in waits} == {"mesh_dp_shard": None, "mesh_tp": None}
    assert waits["4"] == {2: 9_000, 3: 0}
    assert [waits[group] for group in ("1", "2")] == [{0: 9_000, 2: 0}, {1: 9_000, 3: 0}]


def test_messages_go_from_stage_to_stage():
    plan = Plan(pp=3, microbatches=4, steps=2, pipeline=Message(1_000, 10, "Float"))
    # 4 microbatches x 2 steps x 4,000 bytes each way
    assert message_bytes(expected(plan)) == dict.fromkeys([(0, 1), (1, 2), (1, 0), (2, 1)], 32_000)


def test_a_straggler_in_one_step_only():
    plan = Plan(tp=2, stragglers=(Straggler(1, step_ns=9_000, steps=(2,)),))
    made = expected(plan)
    assert [lag_ns(made, step) for step in plan.step_numbers] == [0, 9_000, 0]


def test_a_slow_host_is_late_too():
    plan = Plan(tp=2, steps=1, stragglers=(Straggler(0, host_ns=7_000),), input_copy=Copy(0, 0))
    assert expected(plan).wait_ns(1, 1) == 7_000


def test_prefetch_hides_what_can_be_hidden():
    plan = Plan(dp_shard=2, steps=1, layers=3, host=FREE, input_copy=Copy(0, 0))
    parts = expected(plan).parts(0, 1)
    # the first gather of the forward pass and the last reduce-scatter have nothing to hide under;
    # the first gather of the backward pass was not asked for earlier
    assert parts.exposed_communication_ns == 150_000 + 150_000 + 170_000


def test_without_prefetch_nothing_is_hidden():
    plan = Plan(dp_shard=2, dp_replicate=2, steps=1, prefetch=False)
    assert expected(plan).parts(0, 1).overlap_ns == 0


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 4), (4, 4), (4, 8), (8, 3)])
def test_an_even_pipeline_has_the_bubble_of_theory(stages: int, microbatches: int):
    plan = plans.even_pipeline(stages, microbatches)
    made = expected(plan)
    for rank in range(stages):
        for step in plan.step_numbers:
            length = made.parts(rank, step).window_ns
            assert length == (microbatches + stages - 1) * 900_000
            assert made.bubble_ns(rank, step) == (stages - 1) * 900_000
            assert made.bubble_ns(rank, step) / length == even_bubble_fraction(stages, microbatches)


def test_the_slow_stage_has_the_small_bubble():
    plan = Plan(
        pp=2,
        microbatches=4,
        layers=1,
        forward_ns=(100_000, 300_000),
        backward_ns=(200_000, 600_000),
        host=FREE,
    )
    made = expected(plan)
    assert made.bubble_ns(1, 1) < made.bubble_ns(0, 1)


def test_the_order_of_one_forward_one_backward():
    assert list(one_forward_one_backward(3, 1, 3)) == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 0),
        ("forward", 2),
        ("backward", 1),
        ("backward", 2),
    ]


def test_the_device_runs_behind_a_host_that_does_not_wait():
    plan = Plan(tp=2, host=Host(waits_for_device=False))
    made = expected(plan)
    steps = [made.parts(0, step) for step in plan.step_numbers]
    assert all(one.window_end_ns == other.window_start_ns for one, other in itertools.pairwise(steps))
    assert all(step.end_ns < step.window_end_ns for step in steps)


def test_experts_take_as_long_as_they_have_tokens():
    made = expected(plans.uneven_experts())
    assert made.tokens_by_expert_device() == [200, 100, 900, 400]
    assert values(made)["token_to_expert_assignment"] == 900 / 400
    out = next(m for m in made.operations if m.collective == "all_to_allv")
    sent = out.members[2].moved
    assert (sent.in_split, sent.out_split) == ((50, 25, 225, 100), (225,) * 4)
    assert (sent.in_elements, sent.out_elements) == (400 * 1024, 900 * 1024)
    assert out.bytes(2) == max(400 - 225, 900 - 225) * 1024 * 2


def test_even_tokens_need_no_splits():
    made = expected(Plan(dp_shard=2, ep=2, experts=Experts(((5, 5), (5, 5)))))
    exchange = next(m for m in made.operations if m.dimension == "ep")
    assert (exchange.collective, exchange.members[0].moved.in_split) == ("all_to_all", ())


def test_ranks_are_laid_out_row_major_with_tp_fastest():
    mesh = Mesh(Plan(pp=2, dp_replicate=2, dp_shard=2, tp=2))
    of_13 = {group.dimension: group.ranks for group in mesh.groups_of(13)}
    assert of_13 == {
        "world": tuple(range(16)),
        "pp": (5, 13),
        "dp_replicate": (9, 13),
        "dp_shard": (13, 15),
        "tp": (12, 13),
    }


def test_groups_are_named_as_torch_does():
    mesh = Mesh(Plan(dp_shard=2, cp=2, tp=2, ep=4, experts=Experts(((1,) * 4,) * 4)))
    assert [(g.name, g.description, g.ranks) for g in mesh.groups] == [
        ("0", "default_pg", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("1", "mesh_dp_shard_cp", (0, 2, 4, 6)),
        ("2", "mesh_dp_shard_cp", (1, 3, 5, 7)),
        ("3", "mesh_cp", (0, 2)),
        ("4", "mesh_cp", (1, 3)),
        ("5", "mesh_cp", (4, 6)),
        ("6", "mesh_cp", (5, 7)),
        ("7", "mesh_tp", (0, 1)),
        ("8", "mesh_tp", (2, 3)),
        ("9", "mesh_tp", (4, 5)),
        ("10", "mesh_tp", (6, 7)),
        ("11", "mesh_ep", (0, 2, 4, 6)),
        ("12", "mesh_ep", (1, 3, 5, 7)),
    ]
    assert (mesh.groups[1].start, mesh.groups[1].stride) == (0, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dp_shard": 3, "ep": 2}, "does not divide"),
        ({"dp_shard": 2, "ep": 2}, "needs a table of tokens"),
        ({"pp": 2, "layers": (1, 2, 3)}, "3 entries for 2 stages"),
        ({"missing_ranks": frozenset({4})}, "rank 4 is beyond"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, object], said: str):
    with pytest.raises(UsageError, match=said):
        Plan(**wrong)
