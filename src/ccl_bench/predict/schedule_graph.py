"""A pipeline of another shape as an event graph, with durations drawn from a recorded one.

The microbatches of all recorded steps are one series, except for the first and last ones of steps, which are
such in a draw as well. Each draw takes consecutive ones from a random place on, the same for all ranks: what
slowed several ranks at one time slows them together, and not one after the other [the moving block bootstrap:
Künsch 1989, doi:10.1214/aos/1176347265].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.analysis.communication.bandwidth import known_bus_factor
from ccl_bench.predict.recorded_run import EVERYONE, REPLICAS
from ccl_bench.whatif.event_graph import NEVER, EventGraph
from ccl_bench.whatif.pipeline_orders import BACKWARD, FORWARD, WEIGHTS, Schedule, Slot, stage_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.predict.recorded_run import RecordedPipeline, TailCall
    from ccl_bench.whatif.event_graph import Numbers, Times

_WEIGHTS_SHARE = 0.5
"""Share of the backward pass in the gradients of weights: as many multiplications as those of inputs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline: its stages, replicas of each stage, microbatches and schedule."""

    stages: int
    replicas: int
    microbatches: int
    schedule: Schedule


@dataclass(frozen=True)
class StageWork:
    """The computing of the stages of another shape."""

    scale: float = 1.0
    """Share of a recorded stage's layers that one chunk has."""
    extra_s: Mapping[tuple[str, bool], float] = field(default_factory=dict)
    """Kind of slot, and whether it is at the last end of the model → its computing beside layers."""


def stage_work(recorded: RecordedPipeline, shape: Shape, *, regroups: bool) -> StageWork:
    """Return the work of a chunk if layers are regrouped, else that of a recorded stage.

    A chunk of an interleaved schedule has its part of a stage in either case. What embedding and loss add
    to the first and last stage is their median over that of the stages between; 0 if there is none between.
    """
    chunks = shape.schedule.chunks
    if not regroups:
        return StageWork(1 / chunks)
    extra = {}
    if recorded.stages > 2:
        for kind, times in recorded.computing.items():
            between = np.median(times[1:-1])
            extra[kind, False] = max(0.0, float(np.median(times[0]) - between))
            extra[kind, True] = max(0.0, float(np.median(times[-1]) - between))
    return StageWork(recorded.stages / (shape.stages * chunks), extra)


def predicted_steps(
    recorded: RecordedPipeline, shape: Shape, work: StageWork, draws: int | Numbers, seed: int = 0
) -> Times:
    """Return the length of a step of a shape in each draw, s.

    `draws` is their number, or where each begins in the series of microbatches. Raises UsageError if the
    schedule does not fit the shape.
    """
    builder = _Builder(recorded, shape, work, draws, np.random.default_rng(seed))
    graph, values, ends = builder.graph()
    lengths: Times = graph.replay(values)[ends].max(axis=0)
    return lengths


def replay_error(recorded: RecordedPipeline, shape: Shape) -> Times:
    """Return for each recorded step its length by schedule and own durations, over the recorded one."""
    begins = np.arange(len(recorded.steps)) * max(1, recorded.microbatches - 2)
    ratios: Times = predicted_steps(recorded, shape, StageWork(), begins) / recorded.recorded_s
    return ratios


def source_stage(stage: int, stages: int, recorded: int) -> int:
    """Return the recorded stage that a stage is drawn from: the ends from the ends, others from between."""
    if stages == recorded or stage == 0:
        return stage
    if stage == stages - 1:
        return recorded - 1
    return 1 + (stage - 1) % (recorded - 2) if recorded > 2 else stage % 2


class _Builder:
    """Collects the events of all ranks, and the drawn times between them."""

    def __init__(
        self,
        recorded: RecordedPipeline,
        shape: Shape,
        work: StageWork,
        draws: int | Numbers,
        random: np.random.Generator,
    ) -> None:
        self.recorded, self.shape, self.work = recorded, shape, work
        self.inner = max(1, recorded.microbatches - 2)
        """Microbatches of a recorded step between its first and last one."""
        series = len(recorded.steps) * self.inner
        place = random.integers(series, size=draws) if isinstance(draws, int) else draws
        # Replicas beyond the recorded ones take the durations of one of them some microbatches apart: at the
        # same place none would wait for another, and far away what slows the whole machine would count twice.
        extra = max(0, shape.replicas - recorded.replicas)
        apart = random.choice([-2, -1, 1, 2], size=(extra, len(place)))
        self.places = np.concatenate([np.tile(place, (shape.replicas - extra, 1)), (place + apart) % series])
        """Where each draw of each replica begins in the series of inner microbatches."""
        self.origins = np.tile(np.arange(shape.replicas)[:, None], len(place))
        if shape.replicas != recorded.replicas:
            most = max(shape.replicas, recorded.replicas)
            every = np.tile((np.arange(most) % recorded.replicas)[:, None], len(place))
            self.origins = random.permuted(every, axis=0)[: shape.replicas]
        self.values: list[Times] = [np.zeros(len(place))]
        self.chain: list[int] = []
        self.value: list[int] = []
        self.edges: list[tuple[int, int, int]] = []
        self.sent: dict[tuple[int, int, str, int], int] = {}
        """Replica, part of the model, kind of slot and microbatch → event of its end."""
        self.arrivals: list[tuple[tuple[int, int, str, int], int, int, int]] = []
        """What a slot needs, the event of its arrival, that of the question, and the value of its way."""
        self.follower: dict[int, int] = {}
        """End of a slot → end of the next slot of its rank that sends."""
        self.calls: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
        """Meeting → the events of its members' arrival and end, and the value of their transfer."""

    def _recorded_at(self, replica: int, microbatch: int, kind: str = FORWARD) -> tuple[Numbers, Numbers]:
        """Return the recorded step of a microbatch in each draw, and which of its microbatches it is.

        The first one and the last one of a step are such, because weights are gathered before the first and
        gradients reduced after the last.
        """
        recorded, last = self.recorded, self.shape.microbatches - 1
        between = min(max(microbatch, 1), max(1, last - 1))
        step, at = np.divmod(
            (self.places[replica] + between - 1) % (len(recorded.steps) * self.inner), self.inner
        )
        if 0 < microbatch < last and recorded.microbatches > 2:
            return step, at + 1
        is_first = microbatch <= 0 and (last > 0 or kind == FORWARD)
        return step, np.full(len(step), 0 if is_first else recorded.microbatches - 1)

    def _event(self, rank: int, value: int) -> int:
        self.chain.append(rank)
        self.value.append(value)
        return len(self.chain) - 1

    def _value(self, times: Times) -> int:
        self.values.append(times)
        return len(self.values) - 1

    def graph(self) -> tuple[EventGraph, Times, Numbers]:
        """Return the graph, its values, and the last event of each rank."""
        shape = self.shape
        ends = []
        for stage in range(shape.stages):
            order = stage_order(shape.schedule, shape.stages, stage, shape.microbatches)
            for replica in range(shape.replicas):
                ends.append(self._rank(stage, replica, order))
        messages = self._messages()
        self._meet()
        earliest = np.full(len(self.chain), NEVER)
        earliest[np.flatnonzero(np.diff(self.chain, prepend=-1))] = 0.0
        edges = np.array(self.edges + messages, dtype=np.int64).reshape(-1, 3)
        graph = EventGraph(
            chain=np.array(self.chain),
            value=np.array(self.value),
            earliest=earliest,
            source=edges[:, 0],
            target=edges[:, 1],
            edge_value=edges[:, 2],
            recorded=np.zeros(len(self.chain)),
        )
        return graph, np.stack(self.values), np.array(ends)

    def _rank(self, stage: int, replica: int, order: Sequence[Slot]) -> int:
        """Add the events of a rank, and return the last one."""
        shape, recorded = self.shape, self.recorded
        rank = stage * shape.replicas + replica
        source = source_stage(stage, shape.stages, recorded.stages)
        origin = self.origins[replica]
        first_step, _ = self._recorded_at(replica, 0)
        last_step, _ = self._recorded_at(replica, shape.microbatches - 1)
        self._event(rank, 0)
        at = self._event(rank, self._value(recorded.before[source, origin, first_step]))
        parts = shape.stages * shape.schedule.chunks
        last_sent = -1
        for slot in order:
            part = slot.chunk * shape.stages + stage
            computing, handing = self._slot(slot, stage, replica, part, parts)
            needed = self._needed(replica, part, parts, slot)
            if needed is not None:
                request = at
                wire, pickup = self._message(slot, stage, replica)
                at = self._event(rank, pickup)
                self.arrivals.append((needed, at, request, wire))
            at = self._event(rank, computing)
            self.sent[replica, part, slot.kind, slot.microbatch] = at
            if slot.kind != WEIGHTS and 0 <= part + (1 if slot.kind == FORWARD else -1) < parts:
                if last_sent >= 0:
                    self.follower[last_sent] = at
                last_sent = at
            at = self._event(rank, handing)
        for call, each in enumerate(recorded.tails[source]):
            if each.members == REPLICAS and shape.replicas == 1:
                continue
            at = self._event(rank, self._value(recorded.tail_hosts[source][origin, last_step, call]))
            moved = self._moved(each, recorded.tail_moves[source][origin, last_step, call])
            done = self._event(rank, 0)
            place = {REPLICAS: stage, EVERYONE: -1}.get(each.members, replica)
            key = (each.collective, each.members, call, place)
            self.calls.setdefault(key, []).append((at, done, self._value(moved)))
            at = done
        return self._event(rank, self._value(recorded.tail_hosts[source][origin, last_step, -1]))

    def _drawn(self, kind: str, microbatch: int, stage: int, source: int, replica: int) -> Any:
        """Return the place of a slot in the recorded arrays, for each draw.

        A stage drawn from another one takes the microbatch that this one computes at the same time: one later
        for each stage that it comes after, and one earlier in the backward pass.
        """
        last = self.shape.microbatches - 1
        if 0 < microbatch < last:
            lag = stage - source if kind == FORWARD else source - stage
            microbatch = min(max(microbatch + lag, 1), last - 1)
        return (source, self.origins[replica], *self._recorded_at(replica, microbatch, kind))

    def _slot(self, slot: Slot, stage: int, replica: int, part: int, parts: int) -> tuple[int, int]:
        """Draw the computing of a slot and the time after it."""
        recorded, work, kind = self.recorded, self.work, slot.kind
        recorded_kind = BACKWARD if kind == WEIGHTS else kind
        source = source_stage(stage, self.shape.stages, recorded.stages)
        place = self._drawn(recorded_kind, slot.microbatch, stage, source, replica)
        took = recorded.computing[recorded_kind][place]
        if work.extra_s or work.scale != 1:
            ends = {False: source == 0, True: source == recorded.stages - 1}
            had = sum(work.extra_s.get((recorded_kind, end), 0.0) for end, is_end in ends.items() if is_end)
            has = {False: part == 0, True: part == parts - 1}
            extra = sum(work.extra_s.get((recorded_kind, end), 0.0) for end, is_end in has.items() if is_end)
            took = np.maximum(took - had, 0) * work.scale + extra
        if self.shape.schedule.splits_backward and recorded_kind == BACKWARD:
            took = took * (_WEIGHTS_SHARE if kind == WEIGHTS else 1 - _WEIGHTS_SHARE)
        handing = self._value(recorded.handing[recorded_kind][place]) if kind != WEIGHTS else 0
        return self._value(took), handing

    def _needed(self, replica: int, part: int, parts: int, slot: Slot) -> tuple[int, int, str, int] | None:
        """Return the slot whose message a slot needs, if it is on another stage."""
        before = part + {FORWARD: -1, BACKWARD: 1}.get(slot.kind, 0)
        if before == part or not 0 <= before < parts or self.shape.stages == 1:
            return None
        return (replica, before, slot.kind, slot.microbatch)

    def _message(self, slot: Slot, stage: int, replica: int) -> tuple[int, int]:
        """Draw the times of a message since it was sent, and since it was asked for."""
        recorded = self.recorded
        source = source_stage(stage, self.shape.stages, recorded.stages)
        # The first stage receives nothing in the forward pass, and the last nothing in the backward pass.
        source = max(source, 1) if slot.kind == FORWARD else min(source, recorded.stages - 2)
        place = self._drawn(slot.kind, slot.microbatch, stage, source, replica)
        return (
            self._value(recorded.wires[slot.kind][place]),
            self._value(recorded.pickups[slot.kind][place]),
        )

    def _messages(self) -> list[tuple[int, int, int]]:
        """Return the edges of messages: from the send to the arrival, and back where sends block."""
        edges = []
        for needed, arrival, request, wire in self.arrivals:
            sender = self.sent[needed]
            edges.append((sender, arrival, wire))
            if self.recorded.sends_block and sender in self.follower:
                edges.append((request, self.follower[sender], 0))
        return edges

    def _moved(self, call: TailCall, recorded_s: Times) -> Times:
        """Return the transfer of a call over another number of replicas: that of a ring.

        A ring passes pieces on in rounds that each take the latency of a message; what a transfer takes
        beyond that moves bytes, and changes like the bus factor of nccl-tests.
        """
        if call.members != REPLICAS or self.shape.replicas == self.recorded.replicas:
            return recorded_s
        was = max(2, call.size)
        now = was * self.shape.replicas // self.recorded.replicas
        before, after = (known_bus_factor(call.collective, size) for size in (was, now))
        if not before or not after:
            return recorded_s
        per_round = {"all_reduce": 2}.get(call.collective, 1) * self.recorded.latency_s
        waiting = np.minimum(recorded_s, per_round * (was - 1))
        moved: Times = waiting * (now - 1) / (was - 1) + (recorded_s - waiting) * after / before
        return moved

    def _meet(self) -> None:
        """Let calls move data when all members have arrived."""
        for number, members in enumerate(self.calls.values()):
            meeting = self._event(self.shape.stages * self.shape.replicas + number, 0)
            for arrived, done, moved in members:
                self.edges += [(arrived, meeting, 0), (meeting, done, moved)]
