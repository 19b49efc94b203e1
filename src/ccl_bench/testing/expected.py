"""What a run's numbers must come to, worked out from the plan's true timeline and from no file.

Ranks are global. Steps are numbers of `ProfilerStep`s. Times are whole ns of true time. Nothing
here uses the library's own analysis: shares of time come from looking at every instant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ccl_bench.testing.instructions import COPY_STREAM
from ccl_bench.testing.meetings import Meeting, meetings
from ccl_bench.testing.mesh import WORLD
from ccl_bench.testing.plan import AXES
from ccl_bench.testing.spans import NOTHING, cut, divided, time_with, time_without

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.testing.plan import Plan
    from ccl_bench.testing.spans import Span
    from ccl_bench.testing.timeline import RankStep, Timeline

COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"
_OTHER, _TRANSFER = "communication in groups", "transfer between stages"


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where the time of one step of one rank went, ns."""

    start_ns: int
    """Start of `ProfilerStep`, true ns."""
    end_ns: int
    """End of `ProfilerStep`, true ns."""
    window_start_ns: int
    """Start of the step's window on the device, true ns."""
    window_end_ns: int
    """End of the step's window on the device, true ns."""
    compute_ns: int
    """Time with at least one compute kernel."""
    communication_ns: int
    """Time with at least one communication kernel."""
    overlap_ns: int
    """Time with both."""
    exposed_communication_ns: int
    """Time with communication and no compute."""
    exposed_memory_ns: int
    """Time with copies alone."""
    idle_ns: int
    """Time with nothing."""
    fused_ns: int = 0
    """Time with kernels that compute and communicate in one, which no plan has."""

    @property
    def duration_ns(self) -> int:
        """Length of the step as recorded, ns."""
        return self.end_ns - self.start_ns

    @property
    def window_ns(self) -> int:
        """Length of the step's window on the device, ns."""
        return self.window_end_ns - self.window_start_ns

    @property
    def busy_ns(self) -> int:
        """Time with anything, ns."""
        return self.window_ns - self.idle_ns


@dataclass(frozen=True, slots=True)
class RankCall:
    """One communication kernel of one rank."""

    meeting: Meeting
    rank: int

    @property
    def collective(self) -> str:
        """Canonical collective, as it is counted."""
        return self.meeting.members[self.rank].name

    @property
    def start_ns(self) -> int:
        """Start, true ns."""
        return self.meeting.members[self.rank].start_ns


@dataclass
class Expected:
    """The answers to a run. Methods take a rank and the number of a step."""

    timeline: Timeline

    @property
    def plan(self) -> Plan:
        """The plan that the run was made from."""
        return self.timeline.plan

    @cached_property
    def meetings(self) -> list[Meeting]:
        """Every collective of the run, ranks without a file included."""
        return meetings(self.timeline)

    @cached_property
    def _calls(self) -> dict[int, list[RankCall]]:
        found: dict[int, list[RankCall]] = defaultdict(list)
        for meeting in self.meetings:
            for rank in meeting.members:
                found[rank].append(RankCall(meeting, rank))
        return {rank: sorted(calls, key=lambda call: call.start_ns) for rank, calls in found.items()}

    @cached_property
    def _parts(self) -> dict[int, list[StepParts]]:
        return {}

    @cached_property
    def _windows(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    def parts(self, rank: int, step: int) -> StepParts:
        """Return where the time of a step went."""
        if rank not in self._parts:
            in_windows = cut(self._spans(rank), self.windows(rank))
            self._parts[rank] = [self._divided(rank, index, spans) for index, spans in enumerate(in_windows)]
        return self._parts[rank][step - self.plan.first_step]

    def windows(self, rank: int) -> list[tuple[int, int]]:
        """Return the device window of each step, true ns: it ends with the last work launched in it.

        It begins when what was launched before the recording has ended, or with the first kernel of the step.
        """
        if rank not in self._windows:
            found: list[tuple[int, int]] = []
            reached = 0
            ahead = max((end for _, _, end in self.timeline.backlog(rank)), default=0)
            for records in self.timeline.steps:
                record = records[rank]
                start = max(record.host_start_ns, reached, min(ahead, self._first_kernel_ns(rank, record)))
                reached = max(reached, record.host_end_ns, record.device_end_ns)
                found.append((start, reached))
            self._windows[rank] = found
        return self._windows[rank]

    def _first_kernel_ns(self, rank: int, record: RankStep) -> int:
        items = self.timeline.program(rank).instructions
        return min(
            start for item, start in zip(items, record.starts, strict=True) if item.stream != COPY_STREAM
        )

    def _record(self, rank: int, step: int) -> RankStep:
        return self.timeline.steps[step - self.plan.first_step][rank]

    def _spans(self, rank: int) -> Iterator[Span]:
        items = self.timeline.program(rank).instructions
        steps = [records[rank] for records in self.timeline.steps]
        own = ((n, *span) for one in steps for n, span in enumerate(zip(one.starts, one.ends, strict=True)))
        for number, start, end in (*self.timeline.backlog(rank), *own):
            item = items[number]
            kind = COMPUTE if item.kernel else COMMUNICATION if item.call else MEMORY
            yield kind, start, end

    def _divided(self, rank: int, index: int, spans: list[Span]) -> StepParts:
        window, record = self.windows(rank)[index], self.timeline.steps[index][rank]
        lengths = divided(window, spans)
        communication = time_with(lengths, COMMUNICATION)
        overlap = time_with(lengths, COMMUNICATION, COMPUTE)
        return StepParts(
            start_ns=record.host_start_ns,
            end_ns=record.host_end_ns,
            window_start_ns=window[0],
            window_end_ns=window[1],
            compute_ns=time_with(lengths, COMPUTE),
            communication_ns=communication,
            overlap_ns=overlap,
            exposed_communication_ns=communication - overlap,
            exposed_memory_ns=lengths.get(frozenset({MEMORY}), 0),
            idle_ns=lengths.get(NOTHING, 0),
        )

    def calls(self, rank: int, step: int) -> list[RankCall]:
        """Return the communication kernels that were launched in a step, in order."""
        return [call for call in self._calls.get(rank, []) if call.meeting.step == step]

    def call_counts(self, rank: int, step: int) -> Counter[str]:
        """Return the calls of a step by collective; an uneven all-to-all counts as `all_to_all`."""
        return Counter(call.collective for call in self.calls(rank, step))

    def bytes_by_collective(self, rank: int, step: int) -> Counter[str]:
        """Return the bytes of a step's messages by collective."""
        found: Counter[str] = Counter()
        for call in self.calls(rank, step):
            found[call.collective] += call.meeting.bytes(rank)
        return found

    def bytes_by_dimension(self, rank: int, step: int) -> Counter[str]:
        """Return the bytes of a step's messages by dimension of parallelism.

        The group of all ranks is that of the only dimension in a run that has but one.
        """
        axes = [axis for axis in AXES if getattr(self.plan, axis) > 1]
        names = {WORLD: axes[0]} if len(axes) == 1 else {}
        found: Counter[str] = Counter()
        for call in self.calls(rank, step):
            dimension = call.meeting.dimension
            found[names.get(dimension, dimension)] += call.meeting.bytes(rank)
        return found

    def wait_ns(self, rank: int, step: int) -> int:
        """Return how long a rank waited in the collectives of a step that all members leave together, ns.

        As the present ranks show it: duration minus the shortest duration of a member with a file.
        """
        calls = [call.meeting for call in self.calls(rank, step) if call.meeting.is_symmetric]
        return sum(meeting.duration_ns(rank) - self.seen_transfer_ns(meeting) for meeting in calls)

    def seen_transfer_ns(self, meeting: Meeting) -> int:
        """Return the shortest duration of a member with a file: the transfer, or more where members lack."""
        present = set(meeting.members) - self.plan.missing_ranks
        return min(meeting.duration_ns(rank) for rank in present)

    def bubble_ns(self, rank: int, step: int) -> int:
        """Return the pipeline bubble: step - compute - exposed group calls - exposed stage transfers, ns."""
        window = self.windows(rank)[step - self.plan.first_step]
        spans = [(kind, start, end) for kind, start, end in self._spans(rank) if kind == COMPUTE]
        for call in self._calls.get(rank, []):
            meeting = call.meeting
            if meeting.collective == "send_recv":
                spans.append((_TRANSFER, meeting.end_ns - meeting.transfer_ns, meeting.end_ns))
            else:
                spans.append((_OTHER, call.start_ns, meeting.end_ns))
        return time_without(divided(window, spans), COMPUTE, _OTHER, _TRANSFER)

    def clock_offset_ns(self, rank: int) -> int:
        """Return what the clock in a rank's file is ahead of true time, ns."""
        return self.plan.clock_offset_ns(rank)

    def tokens_by_expert_device(self) -> list[int]:
        """Return the tokens that each member of an expert-parallel group gets in a layer and microbatch."""
        experts = self.plan.experts
        return [] if experts is None else [sum(column) for column in zip(*experts.tokens, strict=True)]
