"""The steps of a run as a workload of ASTRA-sim: for each rank its calls, and its other time around them.

The steps of a rank are cut where a call starts or ends. The time of a piece without the time in which only
calls ran is a node of work, and the pieces follow each other. A call starts when the piece before it has
ended; the piece after a call waits for it. So work of a rank goes on during its calls, and the work and the
exposed time of the calls add up to the recorded steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TABLES = ("steps", "call_stretches", "known_calls", "groups")
"""Tables of a run that a workload is made of."""

SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives that ASTRA-sim simulates; others of `Workload::issue_coll_comm` end it or keep their time."""

MESSAGES = ("send", "recv")

_RECORD_ARGUMENTS = "record the arguments of calls: NCCL with torch 2.5 or later, or also Execution Traces"
_RECORD = "record every rank with torch.profiler over whole steps, with prof.step() in each"


@dataclass(frozen=True, slots=True)
class Span:
    """A call of a rank, as ASTRA-sim simulates it."""

    start_ns: int
    end_ns: int
    call: Mapping[str, Any]
    """The row of `known_calls`."""


@dataclass(frozen=True, slots=True)
class Window:
    """The device window of a step."""

    start_ns: int
    end_ns: int
    length_ns: int
    """Length of the step, which is longer than its window if the host sets the pace."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A node of the workload: a call, or work between and during calls."""

    number: int
    start_ns: int
    duration_us: int
    """Recorded duration; ASTRA-sim replays that of work and replaces that of a call."""
    after: tuple[int, ...]
    """Numbers of the pieces that it waits for."""
    call: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RankWorkload:
    """The steps of one rank."""

    rank: int
    windows: tuple[Window, ...]
    pieces: tuple[Piece, ...]

    @property
    def recorded_ns(self) -> int:
        """Length of all steps, ns."""
        return sum(window.length_ns for window in self.windows)


@dataclass(frozen=True, slots=True)
class Workload:
    """The same steps of all ranks."""

    steps: tuple[int, ...]
    ranks: tuple[RankWorkload, ...]
    numbers: Mapping[str, int]
    """Group → its number in the files."""
    members: Mapping[int, tuple[int, ...]]
    """Number of a group → its ranks."""
    remarks: tuple[str, ...]


def group_numbers(groups: pl.DataFrame) -> dict[str, int]:
    """Return {group: number} from 1, equal for groups with the same members: ASTRA-sim needs numbers."""
    rows = groups.drop_nulls("members").sort("group").select("group", "members").rows()
    distinct = sorted({tuple(members) for _, members in rows})
    number_of = {members: number for number, members in enumerate(distinct, 1)}
    return {group: number_of[tuple(members)] for group, members in rows}


def group_members(groups: pl.DataFrame) -> dict[int, tuple[int, ...]]:
    """Return {number: ranks} of the groups with members."""
    number_of = group_numbers(groups)
    rows = groups.drop_nulls("members").select("group", "members").iter_rows()
    return dict(sorted((number_of[group], tuple(members)) for group, members in rows))


def workload(inputs: Mapping[str, Any], place: str) -> Workload:
    """Return the steps that all ranks of a run recorded, from its `TABLES` and facts.

    Raises InputError without a step or a call to simulate, or if a rank of the job has no trace.
    """
    steps = inputs["steps"].drop_nulls("rank")
    traces = dict(steps.group_by("rank").agg(pl.col("trace").min()).iter_rows())
    if not traces:
        raise InputError("holds no step of a known rank", where=place, fix=_RECORD)
    world = inputs["facts"].world_size
    size = max(world.value if world else 0, max(traces) + 1)
    if len(traces) < size:
        missing = next(rank for rank in range(size) if rank not in traces)
        message = (
            f"holds steps of {counted(len(traces), 'rank')} of {size:,} and not of rank {missing}, "
            "but ASTRA-sim simulates all ranks of the job"
        )
        raise InputError(message, where=place, fix=_RECORD)
    steps = steps.filter(pl.col("trace").is_in([*traces.values()]))
    recorded_by = Counter(step for (step,) in steps.select("step").iter_rows())
    common = tuple(sorted(step for step, count in recorded_by.items() if count == len(traces)))
    if not common:
        raise InputError("holds no step that all ranks recorded", where=place, fix=_RECORD)
    steps = steps.filter(pl.col("step").is_in(common)).sort("trace", "device_start_ns")
    stretches = inputs["call_stretches"].filter(pl.col("step").is_in(common))
    number_of, members = group_numbers(inputs["groups"]), group_members(inputs["groups"])
    spans = _spans(inputs["known_calls"], stretches, traces)
    simulated = _simulated(spans, number_of, members)
    ranks = []
    for rank, trace in sorted(traces.items()):
        rows = steps.filter(pl.col("trace") == trace).select("device_start_ns", "device_end_ns", "length_ns")
        windows = tuple(Window(*row) for row in rows.iter_rows())
        calls = [span.call["call"] for span in simulated[rank]]
        exposed = stretches.filter("is_exposed", pl.col("trace") == trace, pl.col("call").is_in(calls))
        alone = merge_intervals(exposed.select("start_ns", "end_ns").sort("start_ns")).rows()
        pieces = timeline(windows, simulated[rank], alone)
        ranks.append(RankWorkload(rank, windows, tuple(pieces)))
    remarks = _remarks(spans, simulated)
    if not any(simulated.values()):
        why = f": {remarks[0]}" if remarks else ", because nothing communicates in its steps"
        message = f"holds no call that ASTRA-sim can simulate{why}"
        raise InputError(message, where=place, fix=_RECORD_ARGUMENTS)
    if len(common) < len(recorded_by):
        remarks = (f"only the {counted(len(common), 'step')} that all ranks recorded are written", *remarks)
    return Workload(common, tuple(ranks), number_of, members, remarks)


def _spans(calls: pl.DataFrame, stretches: pl.DataFrame, traces: Mapping[int, int]) -> dict[int, list[Span]]:
    """Return the calls of each rank that ran in the steps, in order of start."""
    ran = stretches.group_by("trace", "call").agg(
        ran_ns=pl.col("start_ns").min(), until_ns=pl.col("end_ns").max()
    )
    placed = calls.join(ran, on=["trace", "call"], how="inner").sort("ran_ns", "call")
    spans: dict[int, list[Span]] = {rank: [] for rank in traces}
    for row in placed.iter_rows(named=True):
        if traces.get(row["rank"]) == row["trace"]:
            spans[row["rank"]].append(Span(row["ran_ns"], row["until_ns"], row))
    return spans


def bytes_of(call: Mapping[str, Any]) -> int:
    """Return the bytes of a call as ASTRA-sim counts them: its input, and what a receiver gets; 0 if unknown.

    Source: astra-sim, Ring.cc: an all-gather passes on its input, a reduce-scatter its input over the ranks.
    """
    size = call["received_bytes"] if call["collective"] == "recv" else call["sent_bytes"]
    return size or 0


def _simulated(
    spans: Mapping[int, list[Span]],
    number_of: Mapping[str, int],
    members: Mapping[int, tuple[int, ...]],
) -> dict[int, list[Span]]:
    """Return the calls that ASTRA-sim can simulate: it stops if a member or a peer lacks its side."""
    sequences: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    messages: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    fit: dict[int, list[Span]] = {rank: [] for rank in spans}
    for rank, of_rank in spans.items():
        for span in of_rank:
            call, size = span.call, bytes_of(span.call)
            group = number_of.get(call["group"], 0)
            if (
                call["collective"] in SIMULATED
                and rank in members.get(group, ())
                and size >= len(members[group]) > 1
            ):
                sequences[group, rank].append((call["collective"], size))
                fit[rank].append(span)
            elif call["collective"] in MESSAGES and size and call["peer"] not in {None, rank}:
                messages[_route(rank, call)].append(size)
                fit[rank].append(span)
    agree = {
        group
        for group, ranks in members.items()
        if all(sequences[group, rank] == sequences[group, ranks[0]] for rank in ranks)
    }
    paired = {
        (source, target)
        for _, source, target in [*messages]
        if sorted(messages["send", source, target]) == sorted(messages["recv", source, target])
    }
    return {
        rank: [
            span
            for span in of_rank
            if (
                _route(rank, span.call)[1:] in paired
                if span.call["collective"] in MESSAGES
                else number_of[span.call["group"]] in agree
            )
        ]
        for rank, of_rank in fit.items()
    }


def _route(rank: int, call: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return which side of a message a call is, its sender and its receiver."""
    ends = (rank, call["peer"]) if call["collective"] == "send" else (call["peer"], rank)
    return call["collective"], *ends


def _remarks(spans: Mapping[int, list[Span]], simulated: Mapping[int, list[Span]]) -> tuple[str, ...]:
    left = Counter(
        span.call["collective"] or "unknown kind" for of_rank in spans.values() for span in of_rank
    )
    left.subtract(Counter(span.call["collective"] for of_rank in simulated.values() for span in of_rank))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left.items()) if count)
    if not kinds:
        return ()
    why = "their size, group or peer is unknown or differs between ranks, or ASTRA-sim does not simulate them"
    return (f"calls that keep their measured time, as work: {kinds}; {why}",)


@dataclass(slots=True)
class _Nodes:
    """The nodes of a rank so far."""

    pieces: list[Piece] = field(default_factory=list)
    work: int | None = None
    """The last node of work."""
    ended: list[int] = field(default_factory=list)
    """Calls that ended since."""
    left_ns: int = 0
    """Time of work that rounding to whole microseconds left over."""

    def add(self, start_ns: int, duration_us: int, call: Mapping[str, Any] | None = None) -> int:
        """Add a node that waits for the last work and the calls that ended since, and return its number."""
        after = ([] if self.work is None else [self.work]) + self.ended
        self.pieces.append(Piece(len(self.pieces) + 1, start_ns, duration_us, tuple(after), call))
        return len(self.pieces)

    def work_for(self, start_ns: int, duration_ns: int) -> None:
        """Add work; less than half a microsecond is left for the next."""
        self.left_ns += duration_ns
        if (duration_us := round(self.left_ns / 1000)) > 0:
            self.left_ns -= duration_us * 1000
            self.work = self.add(start_ns, duration_us)
            self.ended = []


def timeline(
    windows: Sequence[Window], spans: Sequence[Span], alone: Sequence[tuple[int, int]]
) -> list[Piece]:
    """Return the nodes of a rank.

    Args:
        windows: Steps in order.
        spans: Calls in order of start, inside the windows.
        alone: Times in which only calls ran, merged and in order.
    """
    nodes = _Nodes()
    cuts = sorted({time for span in spans for time in (span.start_ns, span.end_ns)})
    running: list[tuple[int, int]] = []
    """End and node of each call that has not ended, as a heap."""
    alone_before, begun = _covered(alone), 0
    for window in windows:
        inside = cuts[bisect_left(cuts, window.start_ns) : bisect_right(cuts, window.end_ns)]
        moments = sorted({window.start_ns, *inside, window.end_ns})
        for before, now in pairwise([window.start_ns, *moments]):
            nodes.work_for(before, now - before - (alone_before(now) - alone_before(before)))
            while running and running[0][0] <= now:
                nodes.ended.append(heappop(running)[1])
            while begun < len(spans) and spans[begun].start_ns <= now < window.end_ns:
                span = spans[begun]
                number = nodes.add(span.start_ns, round((span.end_ns - span.start_ns) / 1000), span.call)
                heappush(running, (span.end_ns, number))
                begun += 1
        nodes.work_for(window.end_ns, window.length_ns - (window.end_ns - window.start_ns))
    return nodes.pieces


def _covered(intervals: Sequence[tuple[int, int]]) -> Any:
    """Return the function that gives the time inside the intervals before a moment, ns."""
    starts = [start for start, _ in intervals]
    total = [0, *accumulate(end - start for start, end in intervals)]

    def before(moment: int) -> int:
        place = bisect_right(starts, moment)
        if not place:
            return 0
        start, end = intervals[place - 1]
        return total[place - 1] + min(moment, end) - start

    return before
