"""Regenerated schedules take as long as ranks that run them event by event, and have textbook bubbles."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pipelines import made_pipeline

from ccl_bench.base.errors import UsageError
from ccl_bench.predict.schedule_graph import Shape, StageWork, predicted_steps, source_stage, stage_work
from ccl_bench.whatif.pipeline_orders import BACKWARD, FORWARD, WEIGHTS, parse_schedule, stage_order

if TYPE_CHECKING:
    from collections.abc import Generator

SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "interleaved:3", "zb")


def run_ranks(programs: dict[Any, Generator[tuple[Any, ...], None, None]]) -> float:
    """Run programs that sleep, send, receive and meet, one event after the other; return the last end."""
    number = count()
    queue = [(0.0, next(number), name) for name in programs]
    sent: dict[Any, float] = {}
    waiting: dict[Any, tuple[Any, float, float, float]] = {}
    arrived: dict[Any, list[tuple[Any, float]]] = {}
    last = 0.0
    while queue:
        now, _, name = heapq.heappop(queue)
        last = max(last, now)
        action = next(programs[name], None)
        if action is None:
            continue
        if action[0] == "sleep":
            heapq.heappush(queue, (now + action[1], next(number), name))
        elif action[0] == "send":
            sent[action[1]] = now
            heapq.heappush(queue, (now, next(number), name))
            if action[1] in waiting:
                other, asked, wire, pickup = waiting.pop(action[1])
                heapq.heappush(queue, (max(now + wire, asked + pickup), next(number), other))
        elif action[0] == "receive":
            _, key, wire, pickup = action
            if key in sent:
                heapq.heappush(queue, (max(sent[key] + wire, now + pickup), next(number), name))
            else:
                waiting[key] = (name, now, wire, pickup)
        else:
            _, key, members, took = action
            arrived.setdefault(key, []).append((name, took))
            if len(arrived[key]) == members:
                for other, moved in arrived[key]:
                    heapq.heappush(queue, (now + moved, next(number), other))
    assert not waiting
    return last


def program(recorded: Any, shape: Shape, stage: int, replica: int) -> Generator[tuple[Any, ...], None, None]:
    """Do what one rank does in a step."""
    chunks, parts = shape.schedule.chunks, shape.stages * shape.schedule.chunks
    place = (stage, replica, 0)
    yield "sleep", recorded.before[place]
    for slot in stage_order(shape.schedule, shape.stages, stage, shape.microbatches):
        part = slot.chunk * shape.stages + stage
        kind = BACKWARD if slot.kind == WEIGHTS else slot.kind
        ahead = {FORWARD: 1, BACKWARD: -1}.get(slot.kind, 0)
        if ahead and 0 <= part - ahead < parts and shape.stages > 1:
            source = max(stage, 1) if kind == FORWARD else min(stage, shape.stages - 2)
            times = [each[kind][source, replica, 0, 0] for each in (recorded.wires, recorded.pickups)]
            yield ("receive", (replica, part - ahead, kind, slot.microbatch), *times)
        halves = 2 if shape.schedule.name == "zb" and kind == BACKWARD else 1
        yield "sleep", recorded.computing[kind][(*place, 0)] / chunks / halves
        if ahead:
            yield "send", (replica, part, kind, slot.microbatch)
        if slot.kind != WEIGHTS:
            yield "sleep", recorded.handing[kind][(*place, 0)]
    hosts, moves = recorded.tail_hosts[stage][replica, 0], recorded.tail_moves[stage][replica, 0]
    yield "sleep", hosts[0]
    if shape.replicas > 1:
        yield "meet", ("reduce", stage), shape.replicas, moves[0]
        yield "sleep", hosts[1]
    else:
        return
    yield "meet", "barrier", shape.replicas * shape.stages, moves[1]
    yield "sleep", hosts[2]


TIMES = st.integers(0, 20)


@given(st.data(), st.integers(2, 4), st.integers(2, 3), st.integers(1, 3), st.sampled_from(SCHEDULES))
def test_a_regenerated_schedule_takes_what_ranks_take(
    data: st.DataObject, stages: int, replicas: int, groups: int, name: str
) -> None:
    microbatches = groups * stages

    def drawn() -> np.ndarray:
        several = st.lists(TIMES, min_size=stages * replicas, max_size=stages * replicas)
        return np.array(data.draw(several), dtype=float).reshape(stages, replicas)

    kinds = (FORWARD, BACKWARD)
    recorded = made_pipeline(
        stages,
        replicas,
        microbatches,
        computing={kind: drawn() for kind in kinds},
        handing={kind: drawn() for kind in kinds},
        wires={kind: drawn() for kind in kinds},
        pickups={kind: drawn() for kind in kinds},
        before=drawn(),
        tail_hosts=data.draw(st.lists(TIMES, min_size=3, max_size=3)),
        tail_moves=data.draw(st.lists(TIMES, min_size=2, max_size=2)),
    )
    shape = Shape(stages, replicas, microbatches, parse_schedule(name))
    work = stage_work(recorded, shape, regroups=False)
    predicted = predicted_steps(recorded, shape, work, draws=2, seed=0)
    ranks = {(s, r): program(recorded, shape, s, r) for s in range(stages) for r in range(replicas)}
    assert predicted == pytest.approx(run_ranks(ranks))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved:2", "interleaved:4"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 8), (8, 16)])
def test_the_bubble_is_that_of_the_textbook(name: str, stages: int, microbatches: int) -> None:
    """(p-1)/(m+p-1) of the step, and (p-1)/(v·m+p-1) with v chunks [arXiv 2104.04473, section 2.2]."""
    schedule = parse_schedule(name)
    recorded = made_pipeline(stages, 1, microbatches, computing={FORWARD: 1.0, BACKWARD: 2.0})
    shape = Shape(stages, 1, microbatches, schedule)
    (step,) = predicted_steps(recorded, shape, stage_work(recorded, shape, regroups=False), 1, 0)
    bubble = 1 - 3 * microbatches / step
    assert bubble == pytest.approx((stages - 1) / (schedule.chunks * microbatches + stages - 1))


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 12)])
def test_the_bubble_of_h1_lacks_the_weights(stages: int, microbatches: int) -> None:
    """(p-1)(F + B - W), with B and W the halves of the backward pass [arXiv 2401.10241, table 2]."""
    recorded = made_pipeline(stages, 1, microbatches, computing={FORWARD: 1.0, BACKWARD: 2.0})
    shape = Shape(stages, 1, microbatches, parse_schedule("zb"))
    (step,) = predicted_steps(recorded, shape, StageWork(), 1, 0)
    assert step == pytest.approx(3 * microbatches + (stages - 1))


def test_regrouped_layers_keep_the_work_of_the_model() -> None:
    """Six layers of 2 s over three stages, with 1 s for embedding and 3 s for the loss beside them."""
    forward = np.array([[5.0], [4.0], [7.0]])
    recorded = made_pipeline(3, 1, 4, computing={FORWARD: forward})
    for stages, took in ((2, 7 + 9 + 3 * 9), (6, 3 + 4 * 2 + 5 + 3 * 5), (1, 4 * 16)):
        shape = Shape(stages, 1, 4, parse_schedule("gpipe"))
        (step,) = predicted_steps(recorded, shape, stage_work(recorded, shape, regroups=True), 1, 0)
        assert step == pytest.approx(took)


def test_further_replicas_have_a_longer_reduction_by_rounds_and_bytes() -> None:
    """A ring of 4 has 6 rounds of latency for 2, and moves 1.5 times the bytes of the bus factor."""
    recorded = made_pipeline(2, 2, 1, tail_moves=(5.0, 0.0))
    object.__setattr__(recorded, "latency_s", 1.0)
    for replicas, took in ((2, 5.0), (4, 6 * 1.0 + 3.0 * 1.5), (1, 0.0)):
        (step,) = predicted_steps(recorded, Shape(2, replicas, 1, parse_schedule("1f1b")), StageWork(), 1, 0)
        assert step == pytest.approx(took)


def test_a_slow_moment_slows_all_ranks_at_once() -> None:
    """Both stages stop for 100 s at one time, in which the first computes F4 and the second B3.

    Drawn one by one, the stops would add up to 200 s.
    """
    recorded = made_pipeline(2, 1, 8, steps=8, computing={FORWARD: 1.0, BACKWARD: 1.0})
    recorded.computing[FORWARD][0, 0, 3, 4] = recorded.computing[BACKWARD][1, 0, 3, 3] = 100.0
    shape = Shape(2, 1, 8, parse_schedule("1f1b"))
    steps = predicted_steps(recorded, shape, StageWork(), 200, 0)
    assert np.median(steps) == pytest.approx(18)
    slow = steps[steps > 50]
    assert 0.03 < len(slow) / len(steps) < 0.3
    assert np.median(slow) == pytest.approx(100 + 17, abs=2)


def test_draws_repeat_with_their_seed() -> None:
    recorded = made_pipeline(2, 2, 4)
    recorded.computing[FORWARD][:] = np.random.default_rng(5).random((2, 2, 2, 4))
    shape = Shape(2, 4, 8, parse_schedule("1f1b"))
    first, same, other = (predicted_steps(recorded, shape, StageWork(), 20, seed) for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("stages", "recorded", "sources"),
    [(4, 4, [0, 1, 2, 3]), (2, 4, [0, 3]), (6, 4, [0, 1, 2, 1, 2, 3]), (4, 2, [0, 1, 0, 1]), (1, 4, [0])],
)
def test_ends_are_drawn_from_ends(stages: int, recorded: int, sources: list[int]) -> None:
    assert [source_stage(stage, stages, recorded) for stage in range(stages)] == sources


def test_an_interleaved_schedule_needs_a_multiple_of_its_stages() -> None:
    with pytest.raises(UsageError, match="multiple of 4"):
        stage_order(parse_schedule("interleaved:2"), 4, 0, 6)


@pytest.mark.parametrize("text", ["", "1f1b:2", "interleaved", "interleaved:1", "interleaved:x", "dualpipe"])
def test_other_schedules_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a schedule"):
        parse_schedule(text)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_microbatch_passes_once_in_each_direction(name: str) -> None:
    schedule = parse_schedule(name)
    kinds = (FORWARD, BACKWARD, *([WEIGHTS] if schedule.splits_backward else []))
    expected = sorted((kind, m, c) for kind in kinds for m in range(8) for c in range(schedule.chunks))
    for stage in range(4):
        assert sorted(stage_order(schedule, 4, stage, 8)) == expected
