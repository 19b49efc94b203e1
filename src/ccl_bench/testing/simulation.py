"""Plays a plan out: a discrete-event simulation in whole nanoseconds of true time."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.testing.mesh import Mesh
from ccl_bench.testing.program import COMPUTE_STREAM, program

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccl_bench.testing.plan import Plan
    from ccl_bench.testing.program import Call, Instruction, Program

LAUNCH_AT, LAUNCH_FOR = (3, 8), (1, 4)
"""Where in an operator its launch starts, and how long that takes, as fractions of `launch_ns`."""


@dataclass(slots=True)
class RankStep:
    """One step of one rank; times in true ns, by the number of the instruction."""

    host_start_ns: int
    first_launch_ns: int
    """Start of the first operator."""
    host_end_ns: int = 0
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))

    @property
    def device_end_ns(self) -> int:
        """End of the last work, or of nothing at all."""
        return max(self.ends, default=self.host_start_ns)


@dataclass
class Timeline:
    """A plan played out."""

    plan: Plan
    steps: list[list[RankStep]] = field(default_factory=list)
    """By recorded step, then rank."""
    before: list[list[RankStep]] = field(default_factory=list)
    """By step before the recording, then rank."""

    @cached_property
    def mesh(self) -> Mesh:
        """The plan's mesh."""
        return Mesh(self.plan)

    @cached_property
    def programs(self) -> list[Program]:
        """The program of each stage."""
        return [program(self.plan, stage) for stage in range(self.plan.pp)]

    def program(self, rank: int) -> Program:
        """Return the program of a rank, the same in every step."""
        return self.programs[self.mesh.stage(rank)]

    def backlog(self, rank: int) -> list[tuple[int, int, int]]:
        """Return the work launched before the recording that starts in it: instruction, start, end."""
        begins = self.steps[0][rank].host_start_ns
        return [
            (number, start, end)
            for records in self.before
            for number, (start, end) in enumerate(zip(records[rank].starts, records[rank].ends, strict=True))
            if start >= begins
        ]


def launch_start_ns(plan: Plan, operator_start_ns: int) -> int:
    """Return the start of the launch inside an operator, ns."""
    return operator_start_ns + plan.host.launch_ns * LAUNCH_AT[0] // LAUNCH_AT[1]


def duration_ns(run_timeline: Timeline, rank: int, step: int, index: int) -> int:
    """Return the time of an instruction without peers on a rank in a step, ns."""
    plan, item = run_timeline.plan, run_timeline.program(rank).instructions[index]
    ns = item.ns + item.ns_per_token * _tokens_received(run_timeline, rank)
    for straggler in plan.stragglers:
        if straggler.rank == rank and (not straggler.steps or plan.first_step + step in straggler.steps):
            ns += straggler.layer_ns * ("layer" in item.slows) + straggler.step_ns * ("step" in item.slows)
    if plan.jitter_ns and item.kernel is not None:
        ns += _noise(plan.seed, rank, step, index) % (plan.jitter_ns + 1)
    return ns


def _noise(*numbers: int) -> int:
    """Return a number that looks random and follows from `numbers` alone."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9) % 2**64
        state ^= state >> 29
    return state >> 7


def _tokens_received(run_timeline: Timeline, rank: int) -> int:
    experts = run_timeline.plan.experts
    if experts is None:
        return 0
    member = run_timeline.mesh.group(rank, "ep").ranks.index(rank) if run_timeline.plan.ep > 1 else 0
    return sum(row[member] for row in experts.tokens)


def transfer_ns(plan: Plan, item: Instruction) -> int:
    """Return the time of a collective once every member has come, ns."""
    if item.call is not None and item.call.message is not None:
        return item.call.message.transfer_ns
    return plan.experts.transfer_ns if plan.experts else 0


def slow_link_ns(plan: Plan, step: int, ranks: Collection[int]) -> int:
    """Return the time that slow links add to a collective of these ranks in a step, counted from 0, ns."""
    slow = [link for link in plan.slow_links if {*link.ranks} == {*ranks}]
    return sum(link.more_ns for link in slow if not link.steps or plan.first_step + step in link.steps)


def timeline(plan: Plan) -> Timeline:
    """Return the times of everything in `plan`, from 0 on."""
    run_timeline = Timeline(plan)
    for step in range(-plan.unrecorded_steps, plan.steps):
        past = run_timeline.before if step < 0 else run_timeline.steps
        past.append(_Simulation(run_timeline, step).run())
    return run_timeline


class _Simulation:
    """One step on all ranks."""

    def __init__(self, run_timeline: Timeline, step: int) -> None:
        self.timeline, self.step, self.plan = run_timeline, step, run_timeline.plan
        self.before = [*run_timeline.before, *run_timeline.steps][-1:]
        self.ranks = range(run_timeline.plan.world_size)
        self.records = [self._begun(rank) for rank in self.ranks]
        followers = [rank_program.followers() for rank_program in run_timeline.programs]
        self.followers = [followers[run_timeline.mesh.stage(rank)] for rank in self.ranks]
        self.programs = [run_timeline.program(rank).instructions for rank in self.ranks]
        self.ready = [self._earliest(rank) for rank in self.ranks]
        self.waiting = [self._predecessors(rank) for rank in self.ranks]
        self.operations: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)

    def _begun(self, rank: int) -> RankStep:
        host = self.plan.host
        start = self.before[0][rank].host_end_ns + host.between_steps_ns if self.before else 0
        delay = sum(
            s.host_ns
            for s in self.plan.stragglers
            if s.rank == rank and (not s.steps or self.plan.first_step + self.step in s.steps)
        )
        return RankStep(start, start + host.gap_ns + delay)

    def _earliest(self, rank: int) -> list[int]:
        """Return the earliest start of each instruction, given the host and the streams' earlier work."""
        record, host = self.records[rank], self.plan.host
        launched_ns = launch_start_ns(self.plan, record.first_launch_ns) + host.latency_ns
        ready = [launched_ns + number * host.launch_ns for number in range(len(self.programs[rank]))]
        if not self.before:
            return ready
        busy: dict[int, int] = {}
        for item, end in zip(self.programs[rank], self.before[0][rank].ends, strict=True):
            busy[item.stream] = end
        for number, item in enumerate(self.programs[rank]):
            busy_until = [busy.get(item.stream, 0)]
            if item.phase != "copy" and not item.after:
                busy_until.append(busy.get(COMPUTE_STREAM, 0))
            ready[number] = max(ready[number], *busy_until)
        return ready

    def _predecessors(self, rank: int) -> array[int]:
        counts = array("i", bytes(4 * len(self.programs[rank])))
        for after in self.followers[rank]:
            for number in after:
                counts[number] += 1
        return counts

    def run(self) -> list[RankStep]:
        """Play the step and return its records."""
        for record, items in zip(self.records, self.programs, strict=True):
            record.starts = array("q", bytes(8 * len(items)))
            record.ends = array("q", bytes(8 * len(items)))
        startable = [(r, i) for r in self.ranks for i, count in enumerate(self.waiting[r]) if not count]
        started = 0
        while startable:
            rank, number = startable.pop()
            started += 1
            self.records[rank].starts[number] = self.ready[rank][number]
            for member, instruction, end in self._ended(rank, number):
                self._end(member, instruction, end, startable)
        if started < sum(map(len, self.programs)) or any(self.operations.values()):
            raise UsageError("the ranks of this plan wait for each other", fix="report this as a mistake")
        self._close()
        return self.records

    def _ended(self, rank: int, number: int) -> list[tuple[int, int, int]]:
        """Return the instructions that end because one started, as (rank, instruction, end)."""
        item, start = self.programs[rank][number], self.ready[rank][number]
        if item.call is None:
            return [(rank, number, start + duration_ns(self.timeline, rank, self.step, number))]
        members, key = self._operation(rank, item.call)
        arrivals = self.operations[key]
        arrivals.append((rank, number))
        if len(arrivals) < members:
            return []
        moved_ns = transfer_ns(self.plan, item) + slow_link_ns(self.plan, self.step, {r for r, _ in arrivals})
        end = max(self.records[r].starts[n] for r, n in arrivals) + moved_ns
        del self.operations[key]
        return [(r, n, end) for r, n in arrivals]

    def _operation(self, rank: int, call: Call) -> tuple[int, tuple[object, ...]]:
        if call.peer:
            peer_rank = self.timeline.mesh.neighbour(rank, call.peer)
            return 2, (*((rank, peer_rank) if call.collective == "send" else (peer_rank, rank)), call.match)
        group = self.timeline.mesh.group(rank, call.dimension)
        return len(group.ranks), (group.name, call.match)

    def _end(self, rank: int, number: int, end: int, startable: list[tuple[int, int]]) -> None:
        self.records[rank].ends[number] = end
        ready, waiting = self.ready[rank], self.waiting[rank]
        for after in self.followers[rank][number]:
            ready[after] = max(ready[after], end)
            waiting[after] -= 1
            if not waiting[after]:
                startable.append((rank, after))

    def _close(self) -> None:
        """Set when the step ends on each host."""
        host = self.plan.host
        for record in self.records:
            launched_ns = record.first_launch_ns + len(record.ends) * host.launch_ns
            record.host_end_ns = max(launched_ns, record.device_end_ns if host.waits_for_device else 0)
        if host.steps_start_together:
            last = max(record.host_end_ns for record in self.records)
            for record in self.records:
                record.host_end_ns = last
