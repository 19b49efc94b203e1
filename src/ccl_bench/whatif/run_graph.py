"""The execution graph of a run: operations of all ranks, joined at the meetings of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.communication.groups import stages_of
from ccl_bench.analysis.execution.dependencies import JUST_BEFORE_NS, LONG_CALL_NS
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.evaluate.load import load_tables
from ccl_bench.whatif.event_graph import NEVER, EventGraph
from ccl_bench.whatif.meetings import MESSAGES, find_meetings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.findings import Finding
    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.run import Run
    from ccl_bench.whatif.event_graph import Mask, Numbers, Times

TABLES = ("operations", "steps", "calls", "matched", "messages", "clock_offsets", "listed_groups", "groups")

ODD_NS = -10_000_000
"""A transfer of at most this, ns, is a difference of clocks, and counts as 0."""

GAP, OWN, LATENCY, TAIL = range(4)
"""Times of an operation: since the previous one in its chain, its own, since its launch or awaited event."""

VALUES = 4
"""Values of each operation."""

LATENCY_QUANTILE = 0.05
"""Quantile of the launches of idle threads of a library that is the least time of a launch."""

_NONE = -1
_LONG_AGO = -(1 << 62)


@dataclass(frozen=True)
class RunGraph:
    """A run as operations and events; the events of operation i are `2 i` (start) and `2 i + 1` (end).

    The value of part p of operation i is number `4 i + p`; the last value is 0 for good.
    """

    name: str
    operations: pl.DataFrame
    """One row an operation, ordered by chain and start, with `rank`, `step` and `stage`."""
    events: EventGraph
    values: Times
    """Recorded time of each part of each operation, ns."""
    meets: Numbers
    """Meeting of each operation; -1 without one."""
    steps: tuple[int, ...]
    windows: Mapping[tuple[int, int], _Window]
    """Step and trace → the window of the step."""
    findings: tuple[Finding, ...] = ()

    def step_lengths(self, moments: Times) -> Times:
        """Return the time of the slowest rank in each step, s, from the time of each event."""
        lengths = np.zeros(len(self.steps))
        at = np.searchsorted(self.steps, [step for step, _ in self._step_traces])
        np.maximum.at(lengths, at, self._lengths(moments))
        return lengths

    def trace_lengths(self, moments: Times) -> dict[tuple[int, int], float]:
        """Return the time of each step on each trace, s, from the time of each event."""
        return dict(zip(self._step_traces, self._lengths(moments).tolist(), strict=True))

    def step_begins(self, step: int, moments: Times) -> Times:
        """Return for each event the start of a step on its rank; for meetings the earliest of all."""
        of_step = self._rows_of_steps[step]
        begins = dict(zip(of_step, _Spans.of([*of_step.values()]).begins(moments).tolist(), strict=True))
        every = min(begins.values(), default=NEVER)
        operation_begins = (
            self.operations["trace"].replace_strict(begins, default=every, return_dtype=pl.Float64).to_numpy()
        )
        return np.append(
            np.repeat(operation_begins, 2), np.full(self.events.size - 2 * len(operation_begins), every)
        )

    def held_twice(self, changed: Numbers) -> Numbers:
        """Return those of some values that are gaps, and the time since what the host awaited as well.

        Both hold the time of a host before an operation: since the one before, and since what it awaited.
        """
        gaps = changed[changed % VALUES == GAP]
        twice: Numbers = gaps[self.values[gaps + TAIL] == self.values[gaps]]
        return twice

    def clock_error(self) -> Times:
        """Return for each event the remaining error of the clock of its rank, ns; 0 for meetings."""
        residuals = self.operations["residual_ns"].fill_null(0).to_numpy().astype(np.float64)
        return np.append(np.repeat(residuals, 2), np.zeros(self.events.size - 2 * len(residuals)))

    def step_ends(self, step: int) -> Numbers:
        """Return the events at which an operation of a step ends."""
        return np.concatenate([2 * rows.inside + 1 for rows in self._rows_of_steps[step].values()])

    @cached_property
    def _step_traces(self) -> list[tuple[int, int]]:
        """The steps of each trace that have operations, in order of the steps."""
        return [(step, trace) for step, of_step in self._rows_of_steps.items() for trace in of_step]

    @cached_property
    def _spans(self) -> _Spans:
        return _Spans.of([rows for of_step in self._rows_of_steps.values() for rows in of_step.values()])

    @cached_property
    def _beside(self) -> Times:
        """By how much each step of each trace is longer than its operations show, ns.

        Steps that the host paces are longer than their windows on the device. Steps that the device shows
        itself are shorter where an operation goes on after them.
        """
        windows = [self.windows[each].length_ns for each in self._step_traces]
        return np.array(windows, dtype=np.float64) - self._spans.lengths(self.events.recorded)

    def _lengths(self, moments: Times) -> Times:
        return (self._spans.lengths(moments) + self._beside) / 1e9

    @cached_property
    def _rows_of_steps(self) -> dict[int, dict[int, _StepRows]]:
        """For each step the rows of each trace that belong to it, and those since the step before."""
        by_step: dict[int, dict[int, _StepRows]] = {step: {} for step in self.steps}
        launched = (
            self.operations.group_by("trace", "since", maintain_order=True)
            .agg("row", pl.col("row").filter(pl.col("step").is_not_null()).alias("inside"))
            .sort("trace", "since", nulls_last=False)
        )
        before, of_trace = np.zeros(0, dtype=np.int64), None
        for trace, since, rows, inside in zip(*launched.iter_columns(), strict=True):
            if trace != of_trace:
                before, of_trace = np.zeros(0, dtype=np.int64), trace
            if since in by_step and len(inside):
                unrecorded_ns = self.windows[since, trace].unrecorded_until_ns
                by_step[since][trace] = _StepRows(inside.to_numpy(), before, unrecorded_ns)
            before = rows.to_numpy()
        return by_step


@dataclass(frozen=True, slots=True)
class _Window:
    """The window of a step on the device of one trace."""

    length_ns: int
    unrecorded_until_ns: float
    """Until when the device ran work that the trace does not hold, on the graph's clock; `NEVER` without."""


@dataclass(frozen=True, slots=True)
class _StepRows:
    """The operations of one trace in one step."""

    inside: Numbers
    before: Numbers
    """Operations launched before the step, and since the one before."""
    unrecorded_until_ns: float


@dataclass(frozen=True, slots=True)
class _Spans:
    """The events that bound the steps of each trace, one after the other."""

    starts: Numbers
    """Events at which an operation of a step starts, step by step."""
    opens: Numbers
    """Where those of each step begin."""
    before: Numbers
    """Events at which an operation before a step ends, step by step."""
    before_opens: Numbers
    """Where those of each step begin that has some."""
    has_before: Mask
    unrecorded_until_ns: Times

    @classmethod
    def of(cls, steps: Sequence[_StepRows]) -> _Spans:
        """Return the bounds of steps, each on one trace."""
        nothing = np.zeros(0, dtype=np.int64)
        sizes = [len(each.inside) for each in steps]
        sizes_before = [len(each.before) for each in steps]
        has_before = np.array(sizes_before, dtype=np.int64) > 0
        return cls(
            starts=2 * np.concatenate([nothing, *(each.inside for each in steps)]),
            opens=np.cumsum([0, *sizes], dtype=np.int64)[:-1],
            before=2 * np.concatenate([nothing, *(each.before for each in steps)]) + 1,
            before_opens=np.cumsum([0, *sizes_before], dtype=np.int64)[:-1][has_before],
            has_before=has_before,
            unrecorded_until_ns=np.array([each.unrecorded_until_ns for each in steps], dtype=np.float64),
        )

    def begins(self, moments: Times) -> Times:
        """Return the start of each step: its first operation, after all work launched before has ended."""
        if not self.opens.size:
            return np.zeros(0)
        begins: Times = np.minimum.reduceat(moments[self.starts], self.opens)
        if self.before_opens.size:
            ended = np.maximum.reduceat(moments[self.before], self.before_opens)
            begins[self.has_before] = np.maximum(begins[self.has_before], ended)
        return np.maximum(begins, self.unrecorded_until_ns)

    def lengths(self, moments: Times) -> Times:
        """Return the time from the start of each step to the last end of one of its operations."""
        if not self.opens.size:
            return np.zeros(0)
        lengths: Times = np.maximum.reduceat(moments[self.starts + 1], self.opens) - self.begins(moments)
        return lengths


def load_run_graph(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> RunGraph:
    """Read the traces of a run and return its graph; raise NotMeasurable if they hold no operations."""
    loaded = load_tables(run, TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    return graph_of(run, loaded)


def graph_of(run: Run, loaded: LoadedRun) -> RunGraph:
    """Return the graph of a run whose `TABLES` are loaded; raise NotMeasurable without operations."""
    tables = loaded.inputs
    operations = tables.get("operations")
    if operations is None or operations.is_empty():
        fix = "give a run that was recorded with torch.profiler or Nsight Systems, host and device"
        raise NotMeasurable("no trace holds operations with times", where=str(run.path), fix=fix)
    steps = counted_on(tables["steps"])
    placed = _placed(operations, steps, tables["clock_offsets"]).join(
        tables["calls"][["trace", "call", "collective", "size_bytes", "group"]].join(
            tables["groups"][["group", "dimension", "size"]].unique("group"), on="group", how="left"
        ),
        on=["trace", "call"],
        how="left",
        maintain_order="left",
    )
    meetings = find_meetings(placed, tables)
    facts: Facts = tables["facts"]
    ranks = placed["rank"]
    if facts.pp and facts.pp.value > 1:
        stage = stages_of(ranks, facts)
    else:
        stage = ranks.replace_strict(meetings.stages, default=None, return_dtype=pl.Int64)
    placed = placed.with_columns(stage=stage)
    return build(run.path.name, placed, meetings.pairs, steps, (*loaded.findings, *meetings.findings))


def counted_on(steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps whose numbers count on where those of a recording window begin again."""
    windows = (
        steps.group_by("iteration").agg(pl.col("step").min(), last=pl.col("step").max()).sort("iteration")
    )
    before = windows["last"].shift(1).cum_max()
    if not (windows["step"] <= before).any():
        return steps
    spans = windows["last"] - windows["step"] + 1
    shifts = windows["step"][0] + spans.cum_sum() - spans - windows["step"]
    by_window = windows.select("iteration", shift=shifts)
    on = steps.join(by_window, on="iteration", how="left", nulls_equal=True, maintain_order="left")
    return on.with_columns(pl.col("step") + pl.col("shift")).drop("shift")


def _placed(operations: pl.DataFrame, steps: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    """Return the operations on one clock, in order of chain and start, each with its step and number."""
    shifts = offsets[["iteration", "rank", "offset_ns", "residual_ns"]].unique(["iteration", "rank"])
    (launcher,) = rows_of_numbers(operations, "launcher")
    launch_ns = pl.Series("launch_ns", operations["start_ns"].to_numpy()[launcher])
    launched_operations = operations.with_columns(pl.when(pl.Series(launcher >= 0)).then(launch_ns))
    windows = steps.select("trace", "step", at_ns="start_ns", until_ns="end_ns").sort("at_ns")
    inside = pl.col("at_ns") <= pl.col("until_ns")
    # What was launched before the recording belongs to no step, although it runs in one.
    launched = (
        pl.when(pl.col("launched_before")).then(_LONG_AGO).otherwise(pl.coalesce("launch_ns", "start_ns"))
    )
    is_message = pl.any_horizontal(pl.col("name").cat.ends_with(name) for name in MESSAGES)
    # The end of a step belongs to it, also where the next one begins at once.
    ends = pl.col("name").cat.starts_with("-").fill_null(value=False)
    moved = pl.col("start_ns", "end_ns", "launch_ns") - pl.col("offset_ns").fill_null(0)
    in_steps = (
        launched_operations.select("trace", at_ns=launched - ends.cast(pl.Int64))
        .with_row_index("place")
        .sort("at_ns")
        .join_asof(windows, on="at_ns", by="trace", strategy="backward", check_sortedness=False)
        .sort("place")
        .select(pl.when(inside).then("step").alias("step"), since="step")
    )
    return (
        launched_operations.with_columns(pl.col("place", "kind").cast(pl.Categorical))
        .join(shifts, on=["iteration", "rank"], how="left", nulls_equal=True, maintain_order="left")
        .hstack(in_steps)
        .with_columns(moved, alone=pl.when((pl.col("place") == "range") & is_message).then("operation"))
        .sort("trace", "chain", "alone", "start_ns", "operation")
        .with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
    )


def rows_of_numbers(operations: pl.DataFrame, *names: str) -> list[Numbers]:
    """Return the rows of operations that some columns name by their number in their trace; -1 for none."""
    trace = operations["trace"].rank("dense").to_numpy().astype(np.int64) - 1
    number = operations["operation"].to_numpy()
    span = int(number.max(initial=0)) + 1
    row_of = np.full((int(trace.max(initial=0)) + 1, span), _NONE)
    row_of[trace, number] = np.arange(len(number))
    rows = []
    for name in names:
        wanted = operations[name].fill_null(_NONE).to_numpy()
        has = (wanted >= 0) & (wanted < span)
        rows.append(np.where(has, row_of[trace, np.where(has, wanted, 0)], _NONE))
    return rows


def build(
    name: str,
    placed: pl.DataFrame,
    pairs: pl.DataFrame,
    steps: pl.DataFrame,
    findings: tuple[Finding, ...] = (),
) -> RunGraph:
    """Return the graph of operations; `pairs` of `row` and `meeting` state which ones meet."""
    builder = _GraphBuilder(placed, pairs, steps)
    numbers = tuple(sorted(set(steps["step"].drop_nulls().to_list())))
    return RunGraph(
        name=name,
        operations=placed,
        events=builder.events(),
        values=builder.values,
        meets=builder.meets,
        steps=numbers,
        windows=builder.windows,
        findings=findings,
    )


class _GraphBuilder:
    """Makes events and edges of operations."""

    def __init__(self, placed: pl.DataFrame, pairs: pl.DataFrame, steps: pl.DataFrame) -> None:
        self.size = placed.height
        origin = int(placed.select(pl.col("start_ns").min()).item())
        # Work that was queued behind work which the trace does not hold. In a replay that work ends when it
        # ended; work that the trace holds ends by itself.
        queued = (
            placed.filter(pl.col("place") == "device")
            .join(
                steps.select("trace", "step", "queued_until_ns"), on=["trace", "step"], maintain_order="left"
            )
            .filter(pl.col("start_ns") + pl.col("offset_ns").fill_null(0) == pl.col("queued_until_ns"))
            .filter(pl.col("launcher").is_not_null())
        )
        self.queued = queued["row"].to_numpy()
        until = {
            (step, trace): float(ns - origin)
            for step, trace, ns in queued.select("step", "trace", "start_ns").iter_rows()
        }
        self.windows = {
            (step, trace): _Window(length_ns, until.get((step, trace), NEVER))
            for step, trace, length_ns in steps.select("step", "trace", "length_ns").iter_rows()
        }
        self.start = (placed["start_ns"] - origin).to_numpy().astype(np.float64)
        self.end = (placed["end_ns"] - origin).to_numpy().astype(np.float64)
        self.on_host, self.is_range = ((placed["place"] == place).to_numpy() for place in ("host", "range"))
        self.chain = (
            placed.select(pl.struct("trace", "chain", "alone").rle_id())
            .to_series()
            .to_numpy()
            .astype(np.int64)
        )
        self.launcher, self.awaited = rows_of_numbers(placed, "launcher", "awaited")
        self.at_end = placed["at_end"].to_numpy()
        self.tier = placed["tier"].fill_null(0).to_numpy()
        self.latency = placed["latency_ns"].fill_null(0).to_numpy().astype(np.float64)
        self.is_send = placed["name"].cat.ends_with("send").fill_null(value=False).to_numpy()
        self.meets = np.full(self.size, _NONE, dtype=np.int64)
        self.meets[pairs["row"].to_numpy()] = pairs["meeting"].to_numpy()
        self._times()

    def _times(self) -> None:
        """Split the recorded times into the own time of operations and their waits."""
        start, end, size = self.start, self.end, self.size
        follows = np.append(False, self.chain[1:] == self.chain[:-1])
        before = np.where(follows, np.append(0.0, end[:-1]), NEVER)
        has_launch, waits = self.launcher != _NONE, self.awaited != _NONE
        on_host, is_range = self.on_host, self.is_range
        at_start, at_end = waits & ~self.at_end, waits & self.at_end
        awaited_end = np.where(waits, end[self.awaited], NEVER)
        # A call that takes long starts its work in the end, once it has loaded the code, unless it awaits it.
        is_long = (end - start > LONG_CALL_NS) & ~at_end
        is_after = start >= end[self.launcher] - JUST_BEFORE_NS
        self.from_end = has_launch & ~on_host & ~is_range & is_long[self.launcher] & is_after
        launched = np.where(self.from_end, end[self.launcher], start[self.launcher])
        launched = np.where(has_launch, launched, NEVER)
        values = np.zeros((size, VALUES))
        latest = np.maximum(before, np.where(at_start, awaited_end, NEVER))
        host_gap = np.where(np.isfinite(latest), start - latest, 0)
        values[:, GAP] = np.where(on_host, host_gap, np.minimum(0, np.where(follows, start - before, 0)))
        values[:, LATENCY] = np.where(has_launch, np.minimum(self.latency, start - launched), 0)
        ranges = is_range & has_launch
        values[ranges, LATENCY] = (start - launched)[ranges]
        # A thread of the library that was still busy with the range before delayed this one, not its launch.
        queued = ranges & (before > launched)
        if (at_once := ranges & ~queued).any():
            values[queued, LATENCY] = np.quantile(values[at_once, LATENCY], LATENCY_QUANTILE)
        values[queued, GAP] = (start - before)[queued]
        inferred = at_start & ~on_host & (self.tier == 5)
        values[:, TAIL] = np.where(at_start & on_host, host_gap, np.where(inferred, start - awaited_end, 0))
        values[:, TAIL] = np.where(at_end, end - np.maximum(start, awaited_end), values[:, TAIL])
        values[:, OWN] = np.where(at_end, values[:, TAIL], end - start)
        meets = self.meets != _NONE
        arrived = np.full(self.meets.max(initial=_NONE) + 1, NEVER)
        np.maximum.at(arrived, self.meets[meets], start[meets])
        self.arrived = arrived
        moved = end[meets] - arrived[self.meets[meets]]
        values[meets, OWN] = np.where(moved <= ODD_NS, 0, moved)
        awaited_by_any = np.zeros(size, dtype=np.bool_)
        awaited_by_any[self.awaited[waits]] = True
        eager = is_range & self.is_send & ~awaited_by_any
        values[eager, OWN] = 0
        self.eager = eager
        ready = np.maximum(before + values[:, GAP], np.where(at_start, awaited_end + values[:, TAIL], NEVER))
        ready = np.maximum(ready, np.where(has_launch, launched + values[:, LATENCY], NEVER))
        self.follows, self.at_start, self.has_launch = follows, at_start, has_launch
        self.is_root = ~np.isfinite(ready) | (~on_host & ~has_launch)
        self.values = np.append(values.reshape(-1), 0.0)

    def events(self) -> EventGraph:
        """Return the events: start and end of each operation, and one for each meeting."""
        size, zero = self.size, VALUES * self.size
        rows = np.arange(size)
        meetings = len(self.arrived)
        meets = self.meets != _NONE
        chain = np.append(np.repeat(self.chain, 2), self.chain.max(initial=-1) + 1 + np.arange(meetings))
        own_value = np.where(meets & ~self.eager, zero, VALUES * rows + OWN)
        value = np.append(
            np.stack([VALUES * rows + GAP, own_value], axis=1).reshape(-1), np.full(meetings, zero)
        )
        earliest = np.full(2 * size + meetings, NEVER)
        earliest[2 * rows[self.is_root]] = self.start[self.is_root]
        earliest[2 * self.queued] = self.start[self.queued]
        meeting_event = 2 * size + self.meets
        answered = meets & ~self.eager
        by_start, by_end = self.at_start, (self.awaited != _NONE) & self.at_end
        edges = [
            (2 * self.launcher + self.from_end, 2 * rows, VALUES * rows + LATENCY, self.has_launch),
            (2 * self.awaited + 1, 2 * rows, VALUES * rows + TAIL, by_start),
            (2 * self.awaited + 1, 2 * rows + 1, VALUES * rows + TAIL, by_end),
            (2 * rows, meeting_event, np.full(size, zero), meets),
            (meeting_event, 2 * rows + 1, VALUES * rows + OWN, answered),
        ]
        source, target, edge_value = (
            np.concatenate([edge[part][edge[3]] for edge in edges]) for part in range(3)
        )
        recorded = np.append(np.stack([self.start, self.end], axis=1).reshape(-1), self.arrived)
        return EventGraph(chain, value, earliest, source, target, edge_value, recorded)
