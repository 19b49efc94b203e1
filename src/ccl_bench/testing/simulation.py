"""Plays a plan out: a discrete-event simulation in whole nanoseconds of true time.

A collective's kernel starts on each member when its stream is free and what it waits for has
ended, and ends on all members at once: at the last start plus the transfer. So on every member
duration = wait + transfer, exactly. A send and its receive are such a pair.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.testing.instructions import COMPUTE_STREAM
from ccl_bench.testing.timeline import RankStep, Timeline, duration_ns, launch_start_ns, transfer_ns

if TYPE_CHECKING:
    from ccl_bench.testing.instructions import Call
    from ccl_bench.testing.plan import Plan


def timeline(plan: Plan) -> Timeline:
    """Return when everything in `plan` happens, starting at 0."""
    made = Timeline(plan)
    for step in range(-plan.unrecorded_steps, plan.steps):
        past = made.before if step < 0 else made.steps
        past.append(_Simulation(made, step).run())
    return made


class _Simulation:
    """One step on all ranks."""

    def __init__(self, made: Timeline, step: int) -> None:
        self.made, self.step, self.plan = made, step, made.plan
        self.before = [*made.before, *made.steps][-1:]
        self.ranks = range(made.plan.world_size)
        self.records = [self._begun(rank) for rank in self.ranks]
        followers = [one.followers() for one in made.programs]
        self.followers = [followers[made.mesh.stage(rank)] for rank in self.ranks]
        self.programs = [made.program(rank).instructions for rank in self.ranks]
        self.ready = [self._earliest(rank) for rank in self.ranks]
        self.waiting = [self._predecessors(rank) for rank in self.ranks]
        self.meetings: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)

    def _begun(self, rank: int) -> RankStep:
        host = self.plan.host
        start = self.before[0][rank].host_end_ns + host.between_steps_ns if self.before else 0
        late = sum(
            s.host_ns
            for s in self.plan.stragglers
            if s.rank == rank and (not s.steps or self.plan.first_step + self.step in s.steps)
        )
        return RankStep(start, start + host.gap_ns + late)

    def _earliest(self, rank: int) -> list[int]:
        """Return when the host, and streams still busy with the step before, let each instruction start."""
        record, host = self.records[rank], self.plan.host
        launched = launch_start_ns(self.plan, record.first_launch_ns) + host.latency_ns
        ready = [launched + number * host.launch_ns for number in range(len(self.programs[rank]))]
        if not self.before:
            return ready
        busy: dict[int, int] = {}
        for item, end in zip(self.programs[rank], self.before[0][rank].ends, strict=True):
            busy[item.stream] = end
        for number, item in enumerate(self.programs[rank]):
            held = [busy.get(item.stream, 0)]
            if item.phase != "copy" and not item.after:
                held.append(busy.get(COMPUTE_STREAM, 0))
            ready[number] = max(ready[number], *held)
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
            for member, which, end in self._ended(rank, number):
                self._end(member, which, end, startable)
        if started < sum(map(len, self.programs)) or any(self.meetings.values()):
            raise UsageError("the ranks of this plan wait for each other", fix="report this as a mistake")
        self._close()
        return self.records

    def _ended(self, rank: int, number: int) -> list[tuple[int, int, int]]:
        """Return what ends because an instruction started, as (rank, instruction, end)."""
        item, start = self.programs[rank][number], self.ready[rank][number]
        if item.call is None:
            return [(rank, number, start + duration_ns(self.made, rank, self.step, number))]
        members, key = self._meeting(rank, item.call)
        come = self.meetings[key]
        come.append((rank, number))
        if len(come) < members:
            return []
        end = max(self.records[r].starts[n] for r, n in come) + transfer_ns(self.plan, item)
        del self.meetings[key]
        return [(r, n, end) for r, n in come]

    def _meeting(self, rank: int, call: Call) -> tuple[int, tuple[object, ...]]:
        if call.peer:
            other = self.made.mesh.neighbour(rank, call.peer)
            return 2, (*((rank, other) if call.collective == "send" else (other, rank)), call.match)
        group = self.made.mesh.group(rank, call.dimension)
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
            launched = record.first_launch_ns + len(record.ends) * host.launch_ns
            record.host_end_ns = max(launched, record.device_end_ns if host.waits_for_device else 0)
        if host.steps_start_together:
            last = max(record.host_end_ns for record in self.records)
            for record in self.records:
                record.host_end_ns = last
