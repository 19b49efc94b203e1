"""The ranks of a timeline, read one after the other so that memory does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench import engine
from ccl_bench.base.lazy_polars import pl
from ccl_bench.timeline import activity, exposure
from ccl_bench.timeline.lanes import in_lanes
from ccl_bench.timeline.reduction import Merged, reduced
from ccl_bench.timeline.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.engine import Progress, Reduced
    from ccl_bench.run import Run
    from ccl_bench.timeline.gathering import Common


@dataclass(frozen=True, slots=True)
class RankSlices:
    """What one trace shows."""

    place: int
    """Place of the trace in the order of ranks and recording windows, from 0."""
    trace: int
    name: str
    slices: pl.DataFrame
    """In lanes, in the order of a viewer, on the common clock."""
    merged: Merged


def ranks(
    run: Run,
    common: Common,
    most: int,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Iterator[RankSlices]:
    """Yield the slices of each trace in order, at most `most` of each where that is possible."""
    needs = (*activity.NEEDS, *exposure.NEEDS, *(exposure.OF_PIPELINES if _is_pipeline(run) else ()))
    tasks = [engine.Task(run.traces[position], needs, use_cache, run.choice) for position in common.traces]
    early: dict[int, Reduced] = {}
    expected = 0
    for number, trace in engine.results(tasks, jobs=jobs, progress=progress):
        early[number] = trace
        while expected in early:
            found = early.pop(expected)
            if found.tables:
                yield _rank(run, common, expected, found, most)
            expected += 1


def _is_pipeline(run: Run) -> bool:
    return run.facts.pp is not None and run.facts.pp.value > 1


def _rank(run: Run, common: Common, place: int, trace: Reduced, most: int) -> RankSlices:
    position = common.traces[place]
    found = [activity.activity(tables) for tables in (trace.tables, *trace.further)]
    found.append(waiting(common.members.filter(pl.col("trace") == position)))
    if position in common.counted:
        found += [exposure.exposed(tables) for tables in (trace.tables, *trace.further)]
        if _is_pipeline(run):
            found.append(exposure.bubbles(trace.tables, common.messages, position))
    slices = _in_steps(pl.concat(found), trace.tables["steps"])
    if common.chosen is not None:
        slices = slices.filter(pl.col("step").is_in([*common.chosen]))
    offset = common.clocks.offsets_ns.get(position, 0)
    slices = slices.with_columns(pl.col("start_ns", "end_ns") - offset)
    fewer, merged = reduced(slices, most)
    return RankSlices(place, position, _name(common, trace), in_lanes(fewer), merged)


def _name(common: Common, trace: Reduced) -> str:
    """Return how a viewer calls a trace."""
    if trace.rank is None:
        return trace.trace.relative
    window = f", window {trace.trace.iteration}" if common.has_windows else ""
    return f"rank {trace.rank}{window}"


def _in_steps(slices: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Give every slice that names no step the one in whose device window it starts."""
    windows = steps.select(number="step", start_ns="device_start_ns", until_ns="device_end_ns")
    ordered = slices.sort("start_ns", maintain_order=True)
    placed = ordered.join_asof(windows.sort("start_ns"), on="start_ns", strategy="backward")
    inside = pl.when(pl.col("start_ns") < pl.col("until_ns")).then("number")
    return placed.with_columns(pl.coalesce("step", inside).alias("step")).select(slices.columns)
