"""Expected numbers of a run, computed from the plan's true timeline and from no file."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from ccl_bench.base.units import GIGA, SECOND_NS
from ccl_bench.testing.collectives import Operation, operations
from ccl_bench.testing.mesh import WORLD
from ccl_bench.testing.plan import AXES
from ccl_bench.testing.program import COPY_STREAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.testing.plan import Plan
    from ccl_bench.testing.simulation import RankStep, Timeline

    Span = tuple[str, int, int]
    """Kind, start and end, ns; the end is outside."""

NOTHING: frozenset[str] = frozenset()


def cut_spans(spans: Iterable[Span], windows: list[tuple[int, int]]) -> list[list[Span]]:
    """Return the spans that reach into each of `windows`, which are in order and disjoint."""
    ends = [end for _, end in windows]
    in_windows: list[list[Span]] = [[] for _ in windows]
    for span in spans:
        index = bisect_right(ends, span[1])
        while index < len(windows) and windows[index][0] < span[2]:
            in_windows[index].append(span)
            index += 1
    return in_windows


def divide_window(window: tuple[int, int], spans: Iterable[Span]) -> dict[frozenset[str], int]:
    """Return the time that each set of kinds ran at once within `window`, ns; the lengths add up to it.

    The window is cut wherever anything starts or ends, and each piece is looked at by itself.
    """
    first, last = window
    changes: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for kind, start, end in spans:
        start, end = max(start, first), min(end, last)
        if start < end:
            changes[start].append((kind, 1))
            changes[end].append((kind, -1))
    running: dict[str, int] = defaultdict(int)
    lengths: dict[frozenset[str], int] = defaultdict(int)
    at = first
    for instant in [*sorted(changes), last]:
        lengths[frozenset(kind for kind, count in running.items() if count)] += instant - at
        for kind, change in changes.get(instant, ()):
            running[kind] += change
        at = instant
    return dict(lengths)


def time_with(lengths: dict[frozenset[str], int], *kinds: str) -> int:
    """Return the time that all of `kinds` ran at once, ns."""
    return sum(length for running, length in lengths.items() if running.issuperset(kinds))


def time_without(lengths: dict[frozenset[str], int], *kinds: str) -> int:
    """Return the time that none of `kinds` ran, ns."""
    return sum(length for running, length in lengths.items() if not running.intersection(kinds))


COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"
WAITING, TRANSFER, UNKNOWN = "waiting", "transfer", "unknown"
_OTHER, _TRANSFER = "communication in groups", "transfer between stages"


@dataclass(frozen=True, slots=True)
class StepParts:
    """Times of one step of one rank by kind, ns."""

    start_ns: int
    """Start of `ProfilerStep`, true ns."""
    end_ns: int
    """End of `ProfilerStep`, true ns."""
    window_start_ns: int
    """Start of the step's window on the device, true ns."""
    window_end_ns: int
    """End of the step's window on the device, true ns."""
    window_ns: int
    """Length of the step: its window, and what that lacks where the host sets the pace."""
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
    """Time with nothing, and what the window lacks."""
    fused_ns: int = 0
    """Time with kernels that compute and communicate in one, which no plan has."""

    @property
    def busy_ns(self) -> int:
        """Time with anything, ns."""
        return self.window_ns - self.idle_ns


@dataclass(frozen=True, slots=True)
class RankCall:
    """One communication kernel of one rank."""

    operation: Operation
    rank: int

    @property
    def collective(self) -> str:
        """Canonical collective, as it is counted."""
        return self.operation.members[self.rank].name

    @property
    def start_ns(self) -> int:
        """Start, true ns."""
        return self.operation.members[self.rank].start_ns


@dataclass
class Expected:
    """The answers to a run. Methods take a rank and the number of a step."""

    timeline: Timeline

    @property
    def plan(self) -> Plan:
        """The plan that the run was made from."""
        return self.timeline.plan

    @cached_property
    def operations(self) -> list[Operation]:
        """Every collective of the run, ranks without a file included."""
        return operations(self.timeline)

    @cached_property
    def _calls(self) -> dict[int, list[RankCall]]:
        by_rank: dict[int, list[RankCall]] = defaultdict(list)
        for operation in self.operations:
            for rank in operation.members:
                by_rank[rank].append(RankCall(operation, rank))
        return {rank: sorted(calls, key=lambda call: call.start_ns) for rank, calls in by_rank.items()}

    @cached_property
    def _parts(self) -> dict[int, list[StepParts]]:
        return {}

    @cached_property
    def _windows(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    @cached_property
    def _lacking(self) -> dict[int, list[int]]:
        return {}

    def parts(self, rank: int, step: int) -> StepParts:
        """Return the times of a step by kind."""
        if rank not in self._parts:
            in_windows = cut_spans(self._spans(rank), self.windows(rank))
            self._parts[rank] = [self._divided(rank, index, spans) for index, spans in enumerate(in_windows)]
        return self._parts[rank][step - self.plan.first_step]

    def windows(self, rank: int) -> list[tuple[int, int]]:
        """Return the device window of each step, true ns: it ends with the last work launched in it.

        It begins when what was launched before the recording has ended, or with the first kernel of the step.
        """
        if rank not in self._windows:
            windows: list[tuple[int, int]] = []
            reached_ns = 0
            ahead = max((end for _, _, end in self.timeline.backlog(rank)), default=0)
            for records in self.timeline.steps:
                record = records[rank]
                start = max(record.host_start_ns, reached_ns, min(ahead, self._first_kernel_ns(rank, record)))
                reached_ns = max(reached_ns, record.host_end_ns, record.device_end_ns)
                windows.append((start, reached_ns))
            self._windows[rank] = windows
        return self._windows[rank]

    def lacking_ns(self, rank: int) -> list[int]:
        """Return the time by which each step is longer than its window, ns.

        If windows are shorter than `ProfilerStep`s together, those that began late get the difference: the
        first ones first, up to the time by which they were late.
        """
        if rank not in self._lacking:
            records = [of_step[rank] for of_step in self.timeline.steps]
            windows = self.windows(rank)
            missing = sum(each.host_end_ns - each.host_start_ns for each in records)
            missing -= sum(end - start for start, end in windows)
            lacking: list[int] = []
            reached_ns = 0
            for record, (start, end) in zip(records, windows, strict=True):
                late = start - max(record.host_start_ns, reached_ns)
                lacking.append(max(0, min(late, missing)))
                missing -= lacking[-1]
                reached_ns = end
            self._lacking[rank] = lacking
        return self._lacking[rank]

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
        in_steps = (
            (n, *span)
            for record in steps
            for n, span in enumerate(zip(record.starts, record.ends, strict=True))
        )
        for number, start, end in (*self.timeline.backlog(rank), *in_steps):
            item = items[number]
            kind = COMPUTE if item.kernel else COMMUNICATION if item.call else MEMORY
            yield kind, start, end

    def _divided(self, rank: int, index: int, spans: list[Span]) -> StepParts:
        window, record = self.windows(rank)[index], self.timeline.steps[index][rank]
        lacking = self.lacking_ns(rank)[index]
        lengths = divide_window(window, spans)
        communication = time_with(lengths, COMMUNICATION)
        overlap = time_with(lengths, COMMUNICATION, COMPUTE)
        return StepParts(
            start_ns=record.host_start_ns,
            end_ns=record.host_end_ns,
            window_start_ns=window[0],
            window_end_ns=window[1],
            window_ns=window[1] - window[0] + lacking,
            compute_ns=time_with(lengths, COMPUTE),
            communication_ns=communication,
            overlap_ns=overlap,
            exposed_communication_ns=communication - overlap,
            exposed_memory_ns=lengths.get(frozenset({MEMORY}), 0),
            idle_ns=lengths.get(NOTHING, 0) + lacking,
        )

    def calls(self, rank: int, step: int) -> list[RankCall]:
        """Return the communication kernels that were launched in a step, in order."""
        return [call for call in self._calls.get(rank, []) if call.operation.step == step]

    def call_counts(self, rank: int, step: int) -> Counter[str]:
        """Return the calls of a step by collective; an uneven all-to-all counts as `all_to_all`."""
        return Counter(call.collective for call in self.calls(rank, step))

    def bytes_by_collective(self, rank: int, step: int) -> Counter[str]:
        """Return the bytes of a step's messages by collective."""
        sizes: Counter[str] = Counter()
        for call in self.calls(rank, step):
            sizes[call.collective] += call.operation.bytes(rank)
        return sizes

    def bytes_by_dimension(self, rank: int, step: int) -> Counter[str]:
        """Return the bytes of a step's messages by dimension of parallelism.

        The group of all ranks is that of the only dimension in a run that has but one.
        """
        axes = [axis for axis in AXES if getattr(self.plan, axis) > 1]
        names = {WORLD: axes[0]} if len(axes) == 1 else {}
        sizes: Counter[str] = Counter()
        for call in self.calls(rank, step):
            dimension = call.operation.dimension
            sizes[names.get(dimension, dimension)] += call.operation.bytes(rank)
        return sizes

    def wait_ns(self, rank: int, step: int) -> int:
        """Return a rank's waiting in the collectives of a step that all members leave together, ns.

        As the present ranks show it: duration minus the shortest duration of a member with a file.
        """
        calls = [call.operation for call in self.calls(rank, step) if call.operation.is_symmetric]
        return sum(operation.duration_ns(rank) - self.seen_transfer_ns(operation) for operation in calls)

    def seen_transfer_ns(self, operation: Operation) -> int:
        """Return the shortest duration of a member with a file: the transfer, or more where members lack."""
        present = set(operation.members) - self.plan.missing_ranks
        return min(operation.duration_ns(rank) for rank in present)

    def bubble_ns(self, rank: int, step: int) -> int:
        """Return the pipeline bubble: step - compute - exposed group calls - exposed stage transfers, ns."""
        index = step - self.plan.first_step
        window = self.windows(rank)[index]
        spans = [(kind, start, end) for kind, start, end in self._spans(rank) if kind == COMPUTE]
        for call in self._calls.get(rank, []):
            operation = call.operation
            if operation.collective == "send_recv":
                spans.append((_TRANSFER, operation.end_ns - operation.transfer_ns, operation.end_ns))
            else:
                spans.append((_OTHER, call.start_ns, operation.end_ns))
        bubble = time_without(divide_window(window, spans), COMPUTE, _OTHER, _TRANSFER)
        return bubble + self.lacking_ns(rank)[index]

    def exposed_parts_ns(self, rank: int, step: int) -> dict[str, int]:
        """Return a step's exposed communication by kind: waiting, transfer and unknown, ns.

        While several calls run, it is transfer where one moves data, else unknown if one is unknown.
        """
        spans = [span for span in self._spans(rank) if span[0] == COMPUTE]
        spans += [(UNKNOWN, *span) for span in self._calls_before(rank)]
        spans += [part for call in self._calls.get(rank, []) for part in self._parts_of(call)]
        window = self.windows(rank)[step - self.plan.first_step]
        parts_ns = {WAITING: 0, TRANSFER: 0, UNKNOWN: 0}
        for running, length in divide_window(window, spans).items():
            if running and COMPUTE not in running:
                parts_ns[next(part for part in (TRANSFER, UNKNOWN, WAITING) if part in running)] += length
        return parts_ns

    def _calls_before(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield the calls that were launched before the recording, which belong to no step."""
        items = self.timeline.program(rank).instructions
        return ((start, end) for number, start, end in self.timeline.backlog(rank) if items[number].call)

    def _parts_of(self, call: RankCall) -> list[Span]:
        """Return the parts of a call: it waits first and moves data last."""
        operation = call.operation
        present = operation.members.keys() - self.plan.missing_ranks
        if operation.collective == "all_to_allv" or len(present) == 1 < operation.group_size:
            return [(UNKNOWN, call.start_ns, operation.end_ns)]
        moves_ns = operation.end_ns - self.seen_transfer_ns(operation)
        last_part = TRANSFER if len(present) == len(operation.members) else UNKNOWN
        return [(WAITING, call.start_ns, moves_ns), (last_part, moves_ns, operation.end_ns)]

    def clock_offset_ns(self, rank: int) -> int:
        """Return the time that the clock in a rank's file is ahead of true time, ns."""
        return self.plan.clock_offset_ns(rank)

    def tokens_by_expert_device(self) -> list[int]:
        """Return the tokens that each member of an expert-parallel group gets in a layer and microbatch."""
        experts = self.plan.experts
        return [] if experts is None else [sum(column) for column in zip(*experts.tokens, strict=True)]


def values(expected: Expected) -> dict[str, float]:
    """Return metric -> value, over the ranks that have a file; metrics that do not apply are absent."""
    plan = expected.plan
    by_metric = _of_steps(expected) | _of_calls(expected) | _of_waits(expected) | _of_exposed_parts(expected)
    if plan.pp > 1:
        bubbles = [
            fmean(expected.bubble_ns(rank, step) for rank in ranks) for ranks, step in _stages(expected)
        ]
        by_metric["bubble_size_pipeline"] = by_metric["pipeline_bubble_16"] = fmean(bubbles) / SECOND_NS
    tokens = expected.tokens_by_expert_device()
    if plan.ep > 1 and any(tokens):
        by_metric["token_to_expert_assignment"] = max(tokens) / fmean(tokens)
    return by_metric


def _stages(expected: Expected) -> list[tuple[list[int], int]]:
    """Return the present ranks of each stage with each step."""
    plan = expected.plan
    of_stage = plan.world_size // plan.pp
    ranks = [[r for r in plan.present_ranks if r // of_stage == stage] for stage in range(plan.pp)]
    return [(members, step) for members in ranks if members for step in plan.step_numbers]


def _of_steps(expected: Expected) -> dict[str, float]:
    plan = expected.plan
    ranks = plan.present_ranks
    parts = {rank: [expected.parts(rank, step) for step in plan.step_numbers] for rank in ranks}
    slowest = [max(steps[index].window_ns for steps in parts.values()) for index in range(plan.steps)]
    seconds = fmean(slowest) / SECOND_NS
    tokens_per_s = plan.tokens_per_step / seconds
    flops = plan.model_flops_per_token * tokens_per_s
    mfu = 100 * flops / (plan.world_size * plan.device.peak_tflops * 1e12)
    possible = {"mfu": mfu} if mfu <= 100 else {}
    return possible | {
        "iteration_wall_clock_time": seconds,
        "iter_time_16": seconds,
        "throughput_tokens_sec": tokens_per_s,
        "throughput_tokens_16": tokens_per_s,
        "gpu_busy": fmean(_share(steps, "busy_ns") for steps in parts.values()),
        "gpu_idle": fmean(_share(steps, "idle_ns") for steps in parts.values()),
    }


def _share(steps: list[StepParts], name: str) -> float:
    """Return a part of the steps, %."""
    part_ns: int = sum(getattr(part, name) for part in steps)
    return 100 * part_ns / sum(part.window_ns for part in steps)


def _of_calls(expected: Expected) -> dict[str, float]:
    """Return the values of metrics about communication."""
    plan = expected.plan
    ranks, steps = plan.present_ranks, plan.step_numbers
    if not expected.operations:
        return {}
    first = [len(expected.calls(ranks[0], step)) for step in steps]
    sizes = sum((expected.bytes_by_dimension(rank, step) for rank in ranks for step in steps), Counter())
    overlap = _overlap(expected)
    total = sum(sizes.values())
    by_metric = {
        "coll_call_num": fmean(first),
        "coll_call_num_16": fmean(first),
        "traffic_distribution_16": total / len(ranks) / len(steps) / GIGA,
    }
    if total:
        by_metric["traffic_distribution"] = 100 * max(sizes.values()) / total
    if overlap is not None:
        by_metric |= {"comm_comp_overlap": overlap, "comm_comp_overlap_16": overlap / 100}
    return by_metric


def _of_exposed_parts(expected: Expected) -> dict[str, float]:
    """Return exposed waiting and transfer, unless more than half of exposed communication is neither."""
    ranks, steps = expected.plan.present_ranks, expected.plan.step_numbers
    parts = [expected.exposed_parts_ns(rank, step) for rank in ranks for step in steps]
    total = {part: sum(step_parts[part] for step_parts in parts) for part in (WAITING, TRANSFER, UNKNOWN)}
    if not any(expected.parts(rank, step).communication_ns for rank in ranks for step in steps):
        return {}
    if total[UNKNOWN] > sum(total.values()) / 2:
        return {}
    names = {"exposed_wait_time": WAITING, "exposed_transfer_time": TRANSFER}
    return {name: total[part] / len(parts) / SECOND_NS for name, part in names.items()}


def _of_waits(expected: Expected) -> dict[str, float]:
    """Return the values of metrics about stragglers, where any collective shows who waits."""
    plan, present = expected.plan, set(expected.plan.present_ranks)
    if not any(
        operation.is_symmetric and len(present & operation.members.keys()) > 1
        for operation in expected.operations
    ):
        return {}
    lag_s = fmean(lag_ns(expected, step) for step in plan.step_numbers) / SECOND_NS
    step_s = _of_steps(expected)["iteration_wall_clock_time"]
    return {"straggler_lag_16": lag_s, "straggler": lag_s / step_s}


def _overlap(expected: Expected) -> float | None:
    """Return the mean over communicating ranks of overlap / communication, %."""
    shares = []
    for rank in expected.plan.present_ranks:
        parts = [expected.parts(rank, step) for step in expected.plan.step_numbers]
        if communication := sum(part.communication_ns for part in parts):
            shares.append(100 * sum(part.overlap_ns for part in parts) / communication)
    return fmean(shares) if shares else None


def waits_in_groups(expected: Expected, step: int) -> dict[str, dict[int, int]]:
    """Return group -> present rank -> total wait in a step, ns; who waits least in a group came last.

    Only over collectives that all members leave together. Groups go by their `Process Group Name`.
    """
    by_group: dict[str, dict[int, int]] = {}
    for operation in expected.operations:
        if operation.step == step and operation.is_symmetric:
            waits = by_group.setdefault(operation.group, dict.fromkeys(sorted(operation.members), 0))
            for rank in operation.members:
                waits[rank] += operation.wait_ns(rank)
    missing = expected.plan.missing_ranks
    return {
        group: {rank: wait for rank, wait in waits.items() if rank not in missing}
        for group, waits in by_group.items()
    }


def message_bytes(expected: Expected) -> dict[tuple[int, int], int]:
    """Return (sender, receiver) -> bytes sent from stage to stage in the whole run."""
    sizes: Counter[tuple[int, int]] = Counter()
    for operation in expected.operations:
        if operation.collective == "send_recv":
            sender, receiver = sorted(
                operation.members, key=lambda rank: operation.members[rank].name != "send"
            )
            sizes[sender, receiver] += operation.bytes(sender)
    return dict(sizes)


def lag_ns(expected: Expected, step: int) -> int:
    """Return the straggler's lag in a step: the longest minus the shortest total wait of a rank, ns."""
    waits = [expected.wait_ns(rank, step) for rank in expected.plan.present_ranks]
    return max(waits) - min(waits)
