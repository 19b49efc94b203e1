"""The durations of a recorded pipeline: slots of computing, messages, and the calls at the end of a step.

A step of one rank is tiled: the host's time before the first slot, then for each slot its computing and the
time until the next message is asked for, then the calls that reduce gradients and end the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ccl_bench.analysis.device.markers import BACKWARD as BACKWARD_RANGE
from ccl_bench.analysis.device.markers import FORWARD as FORWARD_RANGE
from ccl_bench.analysis.device.markers import OPTIMIZER as OPTIMIZER_RANGE
from ccl_bench.analysis.steps.findings import warm_up
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.whatif.meetings import MESSAGES
from ccl_bench.whatif.pipeline_orders import BACKWARD, FORWARD
from ccl_bench.whatif.run_graph import OWN, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.whatif.event_graph import Mask, Times
    from ccl_bench.whatif.run_graph import RunGraph

REPLICAS, EVERYONE, PIPELINE = "replicas", "everyone", "pipeline"
"""Members of a call: the ranks of one stage, all ranks, or ranks of several stages."""

_AHEAD = {FORWARD: 1, BACKWARD: -1}
"""Kind of slot → direction in which its messages go."""

_AWAITED = 0.9
"""Share of the sends that have ended before the next one begins, if the program waits for them."""


class TailCall(NamedTuple):
    """A collective after the last slot."""

    collective: str
    members: str
    """`REPLICAS`, `EVERYONE` or `PIPELINE`."""
    size: int
    """Number of members."""


@dataclass(frozen=True)
class RecordedPipeline:
    """The durations of a pipeline, s, by stage and replica; all arrays end with the step."""

    stages: int
    replicas: int
    """Ranks of one stage."""
    microbatches: int
    orders: tuple[tuple[str, ...], ...]
    """For each stage the kinds of its slots, in order."""
    steps: tuple[int, ...]
    computing: Mapping[str, Times]
    """Kind of slot → its computing until its message is sent, `[stage, replica, step, microbatch]`."""
    handing: Mapping[str, Times]
    """Kind of slot → the time from then until the rank asks for the next message, in the same order."""
    before: Times
    """Time before the first slot, `[stage, replica, step]`."""
    wires: Mapping[str, Times]
    """Kind of slot → the time from the sending of its message to its arrival, in the same order.

    NaN on stages that need none. If the message had been sent before the rank asked for it, this is the usual
    time, as far as that is possible.
    """
    pickups: Mapping[str, Times]
    """The same from when the rank asked for the message."""
    latency_s: float
    """Usual time of a message from send to arrival; 0 without any."""
    sends_block: bool
    """Whether the next slot ends only after the receiver has asked for the message of this one."""
    tails: tuple[tuple[TailCall, ...], ...]
    """For each stage its calls after the last slot."""
    tail_hosts: Sequence[Times]
    """For each stage the time before each of these calls and after all, `[replica, step, call + 1]`."""
    tail_moves: Sequence[Times]
    """For each stage the transfer of each of these calls, `[replica, step, call]`."""
    recorded_s: Times
    """Length of each step."""
    findings: list[Finding] = field(default_factory=list)


class _Message(NamedTuple):
    """One side of a message."""

    start: float
    end: float
    other_start: float
    """When the other side began."""


@dataclass
class _Step:
    """What one rank did in one step; times in s."""

    begin: float
    end: float
    received: dict[str, list[_Message]]
    sent: dict[str, list[_Message]]
    starts: dict[str, Times]
    """Kind of slot → starts of ranges that are named after it, and of work that belongs to it."""
    stops: dict[str, Times]
    """The same → their ends."""
    ends: Times
    """Starts of the optimizer, and of the calls of all kinds but messages."""
    calls: list[_Call]
    """These calls."""


def recorded_pipeline(
    graph: RunGraph, recorded_s: Times, phased_work: pl.DataFrame | None = None
) -> RecordedPipeline:
    """Return the durations of a pipeline that was recorded with all its ranks.

    `phased_work` is the table of this name: it separates slots between which no message is sent.

    Raises NotMeasurable if the traces do not show one, or one of another kind than one forward and one
    backward slot for each microbatch and stage.
    """
    origin = graph.operations["start_ns"].min()
    operations = graph.operations.with_columns(
        pl.col("start_ns", "end_ns") - origin,
        meeting=pl.Series(graph.meets),
        moved=pl.Series(graph.values[OWN:-1:VALUES]) / 1e9,
    ).drop_nulls(["rank", "step"])
    ranks = _ranks_of_stages(graph.name, operations)
    stage_of = {rank: stage for stage, members in enumerate(ranks) for rank in members}
    members = _members(operations)
    bounds = _bounds(operations)
    calls = _calls(operations)
    marks = _marks(operations)
    others = _other_sides(operations)
    phases = _work_of_phases(operations, phased_work, origin)
    by_step: dict[int, dict[int, _Slots]] = {}
    left_out, unlike = 0, warm_up(recorded_s.tolist())
    for step in graph.steps[unlike:]:
        try:
            by_step[step] = {
                rank: _slots(
                    _step_of(
                        rank, bounds[rank, step], calls.get((rank, step), []), stage_of, others, marks, phases
                    ),
                    stage,
                    len(ranks),
                )
                for rank, stage in stage_of.items()
            }
            _split(by_step[step].values())
        except (KeyError, _OtherShapeError):
            left_out += 1
    shapes = {tuple(slots.shape for slots in of_step.values()) for of_step in by_step.values()}
    if not by_step or len(shapes) > 1:
        message = "its steps do not show one forward and one backward message for each microbatch and stage"
        fix = "record whole steps of all ranks, of a pipeline with one chunk on a stage"
        raise NotMeasurable(message, where=graph.name, fix=fix)
    findings = []
    if left_out:
        message = f"{left_out} of {len(graph.steps)} steps have other messages than the rest and are left out"
        findings.append(Finding("steps-left-out", "warning", message, count=left_out))
    if unlike:
        message = f"the first {counted(unlike, 'step')} of {len(graph.steps)} took longer, and are left out"
        findings.append(Finding("warmup-left-out", "note", message, count=unlike))
    return _pipeline(ranks, by_step, members, np.isin(graph.steps, list(by_step)), recorded_s, findings)


def _ranks_of_stages(name: str, operations: pl.DataFrame) -> list[list[int]]:
    """Return the ranks of each stage, in order; raise NotMeasurable unless all stages have as many."""
    placed = operations.select("rank", "stage").unique().sort("stage", "rank")
    by_stage = [
        part["rank"].to_list() for part in placed.drop_nulls().partition_by("stage", maintain_order=True)
    ]
    if len(by_stage) < 2 or placed["stage"].null_count():
        fix = "record a run with pipeline stages, and state pp and world_size in its card"
        raise NotMeasurable(
            "the run shows no pipeline: the stages of its ranks are unknown", where=name, fix=fix
        )
    if len({len(ranks) for ranks in by_stage}) > 1:
        counts = ", ".join(str(len(ranks)) for ranks in by_stage)
        message = f"its stages have {counts} ranks with a trace: some are missing"
        raise NotMeasurable(message, where=name, fix="record every rank")
    return by_stage


def _members(operations: pl.DataFrame) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each meeting."""
    met = operations.filter(pl.col("meeting") >= 0).group_by("meeting").agg(pl.col("rank").unique().sort())
    return {meeting: tuple(ranks) for meeting, ranks in met.iter_rows()}


def _other_sides(operations: pl.DataFrame) -> dict[tuple[int, str], tuple[int, float]]:
    """Return for each side of each message the rank of its other side, and when that began, s."""
    messages = operations.filter(pl.col("meeting") >= 0, pl.col("collective").is_in(MESSAGES))
    other = {"send": "recv", "recv": "send"}
    return {
        (meeting, other[side]): (rank, start / 1e9)
        for meeting, side, rank, start in messages.select(
            "meeting", "collective", "rank", "start_ns"
        ).iter_rows()
    }


def _work_of_phases(
    operations: pl.DataFrame, phased_work: pl.DataFrame | None, origin: Any
) -> dict[tuple[int, str], Times]:
    """Return start and end of the work of each rank in each kind of slot, `[work, 2]`, s."""
    if phased_work is None:
        return {}
    shift = operations.select("trace", "offset_ns").unique("trace")
    placed = (
        phased_work.filter(pl.col("kind") != "communication", pl.col("phase").is_in([*_AHEAD]))
        .join(shift, on="trace")
        .with_columns((pl.col("start_ns", "end_ns") - pl.col("offset_ns").fill_null(0) - origin) / 1e9)
        .sort("start_ns")
    )
    by_kind = placed.partition_by("rank", "phase", as_dict=True, maintain_order=True)
    return {key: part.select("start_ns", "end_ns").to_numpy() for key, part in by_kind.items()}


class _OtherShapeError(ValueError):
    """A step does not have the messages of a pipeline."""


_Call = tuple[float, float, int, str, float]
"""Start, end, meeting, collective and transfer of a call, s."""


def _bounds(operations: pl.DataFrame) -> dict[tuple[int, int], tuple[float, float]]:
    """Return begin and end of each step of each rank, s; the range of a send may end long after the step."""
    is_send = pl.col("collective").fill_null("") == "send"
    ends = operations.group_by("rank", "step").agg(
        pl.col("start_ns").min(), pl.col("end_ns").filter(~is_send).max()
    )
    return {(rank, step): (begin / 1e9, end / 1e9) for rank, step, begin, end in ends.iter_rows()}


def _calls(operations: pl.DataFrame) -> dict[tuple[int, int], list[_Call]]:
    """Return the calls of each rank in each step, in order of start."""
    away = operations.filter(pl.col("kind") == "communication", pl.col("place") != "host").sort("start_ns")
    calls: dict[tuple[int, int], list[_Call]] = {}
    columns = ("rank", "step", "start_ns", "end_ns", "meeting", "collective", "moved")
    for rank, step, start, end, meeting, collective, moved in away.select(columns).iter_rows():
        call = (start / 1e9, end / 1e9, meeting, collective or "other", moved)
        calls.setdefault((rank, step), []).append(call)
    return calls


def _marks(operations: pl.DataFrame) -> dict[tuple[int, str, str], Times]:
    """Return when ranges of the host open (`+`) and close (`-`), by rank and what they are named after, s."""
    marks = operations.filter(pl.col("place") == "host", pl.col("kind") == "mark").sort("start_ns")
    names = marks["name"].cast(pl.String)
    marks = marks.select("rank", "start_ns", sign=names.str.head(1), text=names.str.slice(1))
    patterns = {FORWARD: FORWARD_RANGE, BACKWARD: BACKWARD_RANGE, _OPTIMIZER: OPTIMIZER_RANGE}
    by_place: dict[tuple[int, str, str], Times] = {}
    for kind, pattern in patterns.items():
        named = marks.filter(pl.col("text").str.contains(pattern))
        for (rank, sign), part in named.group_by("rank", "sign", maintain_order=True):
            by_place[int(str(rank)), kind, str(sign)] = part["start_ns"].to_numpy() / 1e9
    return by_place


_OPTIMIZER = "optimizer"
_NOTHING = np.zeros(0)


def _step_of(
    rank: int,
    bounds: tuple[float, float],
    every_call: Sequence[_Call],
    stage_of: Mapping[int, int],
    others: Mapping[tuple[int, str], tuple[int, float]],
    marks: Mapping[tuple[int, str, str], Times],
    phases: Mapping[tuple[int, str], Times],
) -> _Step:
    """Return the times of one rank in one step."""
    begin, end = bounds
    received: dict[str, list[_Message]] = {FORWARD: [], BACKWARD: []}
    sent: dict[str, list[_Message]] = {FORWARD: [], BACKWARD: []}
    calls = []
    for call in every_call:
        start, stop, meeting, side, _ = call
        if side not in MESSAGES:
            calls.append(call)
            continue
        if (meeting, side) not in others:
            raise _OtherShapeError
        other, other_start = others[meeting, side]
        ahead = stage_of[other] - stage_of[rank]
        kinds = [kind for kind, way in _AHEAD.items() if way == (ahead if side == "send" else -ahead)]
        if not kinds:
            raise _OtherShapeError
        (sent if side == "send" else received)[kinds[0]].append(_Message(start, stop, other_start))

    def inside(times: Times, by: Times) -> Times:
        since, until = np.searchsorted(by, [begin, end])
        return times[since:until]

    starts, stops = ({} for _ in range(2))
    for kind in (FORWARD, BACKWARD, _OPTIMIZER):
        opened, closed = (marks.get((rank, kind, sign), _NOTHING) for sign in "+-")
        work = phases.get((rank, kind), np.zeros((0, 2)))
        # Ranges that the program names are the slots; work is used without them.
        starts[kind] = inside(opened, opened) if opened.size else inside(work[:, 0], work[:, 0])
        stops[kind] = inside(closed, closed) if closed.size else inside(work[:, 1], work[:, 0])
    ends = np.sort(np.append(starts.pop(_OPTIMIZER), [start for start, *_ in calls]))
    return _Step(begin, end, received, sent, starts, stops, ends, calls)


@dataclass
class _Slots:
    """The slots of one rank in one step."""

    order: list[str]
    start: Times
    end: Times
    """When the message of each slot was sent, else the end of its computing."""
    request: Times
    """When the rank asked for the message of each slot; NaN where it needs none."""
    unknown: list[int]
    """Slots whose end, and the start of the next, nothing shows."""
    received: dict[str, list[_Message]]
    sent: dict[str, list[_Message]]
    calls: list[_Call]
    begin: float
    finish: float

    @property
    def shape(self) -> tuple[object, ...]:
        """What must agree between steps."""
        return (*self.order, *(call[3] for call in self.calls))


def _slots(step: _Step, stage: int, stages: int) -> _Slots:
    """Return the slots of a rank: bounds come from messages, else from ranges and work, else from others."""
    is_first, is_last = stage == 0, stage == stages - 1
    needs = {FORWARD: not is_first, BACKWARD: not is_last}
    gives = {FORWARD: not is_last, BACKWARD: not is_first}
    count = len(step.received[FORWARD] or step.sent[FORWARD])
    rows: list[tuple[float, str, int]] = []
    for kind in _AHEAD:
        got, gave = step.received[kind], step.sent[kind]
        if len(got) != count * needs[kind] or len(gave) != count * gives[kind] or not count:
            raise _OtherShapeError
        # A slot lies before its own message is sent, and after that which it needs has come.
        rows += [(gave[k].start if gives[kind] else got[k].end, kind, k) for k in range(count)]
    rows.sort()
    order = [kind for _, kind, _ in rows]
    size = len(rows)
    start, end, request = (np.full(size, np.nan) for _ in range(3))
    for at, (_, kind, k) in enumerate(rows):
        if needs[kind]:
            start[at], request[at] = step.received[kind][k].end, step.received[kind][k].start
        if gives[kind]:
            end[at] = step.sent[kind][k].start
    unknown = _fill(step, order, start, end, request)
    # A message that came while the slot before still computed was picked up after it.
    start[1:] = np.fmax(start[1:], end[:-1])
    last = float(end[-1])
    calls = [call for call in step.calls if call[1] > last]
    return _Slots(order, start, end, request, unknown, step.received, step.sent, calls, step.begin, step.end)


def _fill(step: _Step, order: list[str], start: Times, end: Times, request: Times) -> list[int]:
    """Set the bounds that no message shows; return the slots whose end nothing shows."""
    size = len(order)
    for at in range(size):
        if np.isnan(start[at]) and at and not np.isnan(end[at - 1]):
            start[at] = end[at - 1]
        if np.isnan(end[at]) and at + 1 < size and not np.isnan(request[at + 1]):
            end[at] = max(request[at + 1], start[at])
    if np.isnan(start[0]):
        starts = step.starts[order[0]]
        start[0] = starts[0] if starts.size and starts[0] < end[0] else step.begin
    if np.isnan(end[-1]):
        after = step.ends[step.ends > start[-1]]
        end[-1] = after[0] if after.size else step.end
    unknown = []
    for at in range(size - 1):
        if np.isnan(end[at]):
            first, following = order[at], order[at + 1]
            # Backward work has marks of its own; forward work is what is not marked as such.
            bounds = step.stops[first] if first == BACKWARD else step.starts[following]
            inside = bounds[(bounds > start[at]) & (bounds < end[at + 1])]
            if inside.size:
                end[at] = start[at + 1] = inside[-1 if first == BACKWARD else 0]
            else:
                unknown.append(at)
    return unknown


def _split(every: Iterable[_Slots]) -> None:
    """Split the time of two slots between which nothing shows a bound, in the ratio of slots alike."""
    slots = [*every]
    if not any(each.unknown for each in slots):
        return
    took = np.concatenate([each.end - each.start for each in slots])
    kinds = np.concatenate([each.order for each in slots])
    usual = {}
    for kind in _AHEAD:
        times = took[(kinds == kind) & np.isfinite(took)]
        if not times.size:
            raise _OtherShapeError
        usual[kind] = float(np.median(times))
    for each in slots:
        for at in each.unknown:
            share = usual[each.order[at]] / (usual[each.order[at]] + usual[each.order[at + 1]])
            each.end[at] = each.start[at + 1] = each.start[at] + share * (each.end[at + 1] - each.start[at])


def _pipeline(
    ranks: list[list[int]],
    by_step: Mapping[int, Mapping[int, _Slots]],
    members: Mapping[int, tuple[int, ...]],
    is_whole: Mask,
    recorded_s: Times,
    findings: list[Finding],
) -> RecordedPipeline:
    """Return the durations of all ranks and steps in arrays."""
    first = next(iter(by_step.values()))
    stages, replicas, count = len(ranks), len(ranks[0]), len(first[ranks[0][0]].order) // 2
    shape = (stages, replicas, len(by_step), count)
    computing, handing = ({kind: np.zeros(shape) for kind in _AHEAD} for _ in range(2))
    before = np.zeros(shape[:3])
    wires, pickups = ({kind: np.full(shape, np.nan) for kind in _AHEAD} for _ in range(2))
    hosts = [np.zeros((replicas, len(by_step), 1 + len(first[of[0]].calls))) for of in ranks]
    moves = [np.zeros((replicas, len(by_step), len(first[of[0]].calls))) for of in ranks]
    awaited, blocked, sends = 0, 0, 0
    for number, of_step in enumerate(by_step.values()):
        for stage, of_stage in enumerate(ranks):
            for replica, rank in enumerate(of_stage):
                slots = of_step[rank]
                place = (stage, replica, number)
                until = np.append(np.fmin(slots.request[1:], slots.start[1:]), slots.end[-1])
                until = np.maximum(np.where(np.isnan(until), slots.end, until), slots.end)
                for kind in _AHEAD:
                    which = np.array(slots.order) == kind
                    computing[kind][place] = (slots.end - slots.start)[which]
                    handing[kind][place] = (until - slots.end)[which]
                    if got := slots.received[kind]:
                        started, ended, sent = np.array(got).T
                        wires[kind][place], pickups[kind][place] = ended - sent, ended - started
                begun = slots.start[0] if np.isnan(slots.request[0]) else slots.request[0]
                before[place] = max(0.0, begun - slots.begin)
                at = slots.end[-1]
                for call, (start, end, _, _, moved) in enumerate(slots.calls):
                    hosts[stage][replica, number, call] = max(0.0, start - at)
                    moves[stage][replica, number, call] = moved if moved > 0 else 0.0
                    at = max(at, end)
                hosts[stage][replica, number, -1] = max(0.0, slots.finish - at)
                every = sorted(each for kind in _AHEAD for each in slots.sent[kind])
                for one, following in pairwise(every):
                    sends += 1
                    awaited += one.end <= following.start
                    blocked += one.end >= one.other_start
    usual = _usual(wires, pickups)
    arrivals = _arrivals(wires, pickups, usual)
    tails = tuple(
        tuple(_tail_call(call, members, ranks) for call in first[of_stage[0]].calls) for of_stage in ranks
    )
    return RecordedPipeline(
        stages=stages,
        replicas=replicas,
        microbatches=count,
        orders=tuple(tuple(first[of_stage[0]].order) for of_stage in ranks),
        steps=tuple(by_step),
        computing=computing,
        handing=handing,
        before=before,
        wires=arrivals[0],
        pickups=arrivals[1],
        latency_s=usual["wire"] if np.isfinite(usual["wire"]) else 0.0,
        sends_block=min(awaited, blocked) > _AWAITED * sends,
        tails=tails,
        tail_hosts=hosts,
        tail_moves=moves,
        recorded_s=recorded_s[is_whole],
        findings=findings,
    )


def _usual(wires: Mapping[str, Times], pickups: Mapping[str, Times]) -> dict[str, float]:
    """Return the median time of messages since the later of their send, `wire`, and the ask, `pickup`."""
    usual = {}
    for name, these, others in (("wire", wires, pickups), ("pickup", pickups, wires)):
        after = np.concatenate([these[kind][these[kind] <= others[kind]] for kind in these])
        usual[name] = float(np.median(after)) if after.size else np.inf
    return usual


def _arrivals(
    wires: Mapping[str, Times], pickups: Mapping[str, Times], usual: Mapping[str, float]
) -> tuple[dict[str, Times], dict[str, Times]]:
    """Return the times of messages since they were sent and since they were asked for.

    A message arrives some time after the later of both. The time after the earlier one is only known to be at
    most that long: it is the usual time of messages, if that is shorter.
    """
    shown: tuple[dict[str, Times], dict[str, Times]] = ({}, {})
    for kind, wire in wires.items():
        pickup = pickups[kind]
        waited = wire <= pickup
        shown[0][kind] = np.maximum(np.where(waited, wire, np.minimum(wire, usual["wire"])), 0)
        shown[1][kind] = np.maximum(np.where(waited, np.minimum(pickup, usual["pickup"]), pickup), 0)
    return shown


def _tail_call(
    call: _Call,
    members: Mapping[int, tuple[int, ...]],
    ranks: list[list[int]],
) -> TailCall:
    """Return a call with the kind of its members."""
    met = {*members.get(call[2], ())}
    everyone = {rank for of_stage in ranks for rank in of_stage}
    if met == everyone and len(ranks) > 1:
        kind = EVERYONE
    elif any(met <= {*of_stage} for of_stage in ranks):
        kind = REPLICAS
    else:
        kind = PIPELINE
    return TailCall(call[3], kind, max(1, len(met)))
