"""Loading of a timeline: first the data that all ranks share, then the slices rank by rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench import engine
from ccl_bench.analysis.communication.clocks import Clocks, clocks_of
from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis.diagnose import diagnose_loaded, needed_tables
from ccl_bench.evaluate.load import check_numbers, load_tables, recorded_steps
from ccl_bench.timeline import activity
from ccl_bench.timeline.activity import (
    critical_slices,
    other_slices,
    overall_slices,
    ranks_waiting,
    shown_waits,
    wait_slices,
    whole_path,
)
from ccl_bench.timeline.diagnoses import detected_slices, example_slices
from ccl_bench.timeline.slices import MergedSlices, assign_lanes, merge_short_slices
from ccl_bench.whatif import run_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.engine import Progress
    from ccl_bench.run import Run
    from ccl_bench.run.trace_tables import TraceTables

_TABLES = (
    "contents",
    "steps",
    "breakdown",
    "matched",
    "clock_offsets",
    "waits",
    "messages",
    "call_parts",
    *run_graph.TABLES,
)


@dataclass(frozen=True, slots=True)
class SharedData:
    """Data of a run that all ranks share."""

    clocks: Clocks
    zero_ns: int
    """Start of the timeline on the common clock, ns."""
    traces: tuple[int, ...]
    """Non-empty traces, in order of rank and recording window."""
    counted: frozenset[int]
    """Traces that numbers use; others are truncated or were recorded differently."""
    chosen_steps: frozenset[int] | None
    """Numbers of the steps to show; None for all."""
    whole: pl.DataFrame
    """Slices of all ranks together, on the common clock."""
    waiting: pl.DataFrame
    """Number of waiting ranks from each moment of the common clock on."""
    members: pl.DataFrame
    """Members of collectives with known waiting."""
    messages: pl.DataFrame
    """Messages between two ranks with both sides recorded."""
    call_parts: pl.DataFrame
    """Waiting, transfer and unknown time of every call."""
    critical: pl.DataFrame
    """Slices of the critical path with their `trace`, on its own clock."""
    no_critical: str
    """Why there is no critical path; "" if there is one."""
    examples: pl.DataFrame
    """Slices of the operations that show diagnoses with their `trace`, on its own clock."""
    names: dict[int, str]
    """Trace → its name in the viewer."""


def load_common(
    run: Run,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> SharedData:
    """Return the shared data of the ranks of a run; every trace is read, and only small tables are kept.

    Raises InputError if no trace has events to show, UsageError for chosen steps that no trace has.
    """
    wanted = dict.fromkeys((*_TABLES, *needed_tables()))
    evidence = load_tables(run, wanted, jobs=jobs, use_cache=use_cache, progress=progress)
    inputs = evidence.inputs
    contents = inputs["contents"].drop_nulls("start_ns")
    if contents.is_empty():
        fix = "give a run that was recorded with torch.profiler or Nsight Systems"
        raise InputError("contains no trace with times", where=str(run.path), fix=fix)
    check_numbers(run.choice, recorded_steps(evidence.traces))
    clocks = clocks_of(contents, inputs["clock_offsets"])
    members = shown_waits(inputs["matched"], inputs["call_parts"], clocks.offsets_ns)
    steps = clocks.applied(inputs["steps"])
    critical, no_critical = critical_slices(run, evidence)
    diagnoses = diagnose_loaded(run, evidence).diagnoses
    placed = contents.sort("rank", "iteration", "trace", nulls_last=True)
    has_windows = contents["iteration"].n_unique() > 1
    names = {}
    for trace, rank, window in placed.select("trace", "rank", "iteration").iter_rows():
        of_window = f", window {window}" if has_windows else ""
        names[trace] = run.traces[trace].relative if rank is None else f"rank {rank}{of_window}"
    together = pl.concat(
        [
            overall_slices(steps, inputs["waits"], inputs["breakdown"], inputs["facts"]),
            whole_path(clocks.applied(critical), names),
            detected_slices(diagnoses, steps),
        ]
    )
    chosen_steps = frozenset(inputs["steps"]["step"]) if run.choice else None
    spans = [steps, clocks.applied(contents)]
    if chosen_steps is not None:
        members, together = _of_steps(members, chosen_steps), _of_steps(together, chosen_steps)
        spans = [_of_steps(steps, chosen_steps)]
    # A rank may already be late before the first slice.
    late = members.filter("last").select(pl.col("start_ns") - pl.col("longest_ns") - pl.col("offset_ns"))
    first_ns = pl.concat([*(table["start_ns"] for table in spans), late["start_ns"]]).min()
    return SharedData(
        clocks,
        int(first_ns or 0),  # type: ignore[arg-type]
        tuple(names),
        frozenset(inputs["steps"]["trace"]),
        chosen_steps,
        together,
        ranks_waiting(members),
        members,
        inputs["messages"],
        inputs["call_parts"],
        critical,
        no_critical,
        example_slices(diagnoses, contents, inputs["clock_offsets"]),
        names,
    )


def _of_steps(table: pl.DataFrame, steps: frozenset[int]) -> pl.DataFrame:
    return table.filter(pl.col("step").is_in([*steps]))


@dataclass(frozen=True, slots=True)
class RankSlices:
    """The slices of one trace."""

    place: int
    """Place of the trace in the order of ranks and recording windows, from 0."""
    trace: int
    name: str
    slices: pl.DataFrame
    """In lanes, in the order of a viewer, on the common clock."""
    merged: MergedSlices


def load_ranks(
    run: Run,
    common: SharedData,
    most: int,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Iterator[RankSlices]:
    """Yield the slices of each trace in order, at most `most` of each if possible."""
    needs = (
        *activity.ACTIVITY_TABLES,
        *activity.EXPOSURE_TABLES,
        *(activity.PIPELINE_TABLES if _is_pipeline(run) else ()),
    )
    tasks = [engine.Task(run.traces[position], needs, use_cache, run.choice) for position in common.traces]
    early: dict[int, TraceTables] = {}
    expected = 0
    for number, trace in engine.stream_traces(tasks, jobs=jobs, progress=progress):
        early[number] = trace
        while expected in early:
            ready = early.pop(expected)
            if ready.tables:
                yield _rank(run, common, expected, ready, most)
            expected += 1


def _is_pipeline(run: Run) -> bool:
    return run.facts.pp is not None and run.facts.pp.value > 1


def _rank(run: Run, common: SharedData, place: int, trace: TraceTables, most: int) -> RankSlices:
    position = common.traces[place]
    parts = [activity.activity_slices(tables) for tables in (trace.tables, *trace.further)]
    for table in (common.critical, common.examples):
        parts.append(table.filter(pl.col("trace") == position).drop("trace"))
    members = common.members.filter(pl.col("trace") == position)
    parts += [wait_slices(members), other_slices(common.call_parts.filter(trace=position), members)]
    if position in common.counted:
        parts += [
            activity.exposed_slices(tables, common.call_parts, position + device * len(run.traces))
            for device, tables in enumerate((trace.tables, *trace.further))
        ]
        if _is_pipeline(run):
            parts.append(activity.bubble_slices(trace.tables, common.messages, position))
    # A slice without a step is of the step in whose device window it starts.
    windows = trace.tables["steps"].select(
        number="step", start_ns="device_start_ns", until_ns="device_end_ns"
    )
    slices = pl.concat(parts).sort("start_ns", maintain_order=True)
    columns = slices.columns
    inside = pl.when(pl.col("start_ns") < pl.col("until_ns")).then("number")
    slices = slices.join_asof(windows.sort("start_ns"), on="start_ns", strategy="backward")
    slices = slices.with_columns(pl.coalesce("step", inside).alias("step")).select(columns)
    if common.chosen_steps is not None:
        slices = _of_steps(slices, common.chosen_steps)
    offset = common.clocks.offsets_ns.get(position, 0)
    slices = slices.with_columns(pl.col("start_ns", "end_ns") - offset)
    merged_slices, merged = merge_short_slices(slices, most)
    return RankSlices(place, position, common.names[position], assign_lanes(merged_slices), merged)
