"""When everything happens on all ranks, in whole nanoseconds of true time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ccl_bench.testing.mesh import Mesh
from ccl_bench.testing.program import program

if TYPE_CHECKING:
    from ccl_bench.testing.instructions import Instruction, Program
    from ccl_bench.testing.plan import Plan

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
        """Return what a rank launches in every step."""
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
    """Return when the launch inside an operator starts, ns."""
    return operator_start_ns + plan.host.launch_ns * LAUNCH_AT[0] // LAUNCH_AT[1]


def duration_ns(made: Timeline, rank: int, step: int, index: int) -> int:
    """Return how long an instruction without peers takes on a rank in a step, ns."""
    plan, item = made.plan, made.program(rank).instructions[index]
    ns = item.ns + item.ns_per_token * _tokens_received(made, rank)
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


def _tokens_received(made: Timeline, rank: int) -> int:
    experts = made.plan.experts
    if experts is None:
        return 0
    member = made.mesh.group(rank, "ep").ranks.index(rank) if made.plan.ep > 1 else 0
    return sum(row[member] for row in experts.tokens)


def transfer_ns(plan: Plan, item: Instruction) -> int:
    """Return how long a collective takes once every member has come, ns."""
    if item.call is not None and item.call.message is not None:
        return item.call.message.transfer_ns
    return plan.experts.transfer_ns if plan.experts else 0
