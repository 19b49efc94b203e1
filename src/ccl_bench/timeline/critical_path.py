"""The critical path of each step as slices on the ranks it leads over, with arrows where it changes rank."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NoValue
from ccl_bench.base.lazy_imports import pl
from ccl_bench.timeline.slices import CRITICAL, slices
from ccl_bench.whatif.answer import replay_recorded
from ccl_bench.whatif.critical_path import UNEXPLAINED, find_paths
from ccl_bench.whatif.run_graph import graph_of
from ccl_bench.whatif.run_replays import RunReplays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.run import Run
    from ccl_bench.whatif.critical_path import PathSegment

FIRST_FLOW = 1 << 40
"""Number of the arrows of the first step; those of collectives are smaller."""

_COLUMNS = {"trace": pl.Int64, "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}


def critical_slices(run: Run, loaded: LoadedRun) -> tuple[pl.DataFrame, str]:
    """Return the slices of the path with their `trace`, on its own clock, and why there are none, or "".

    `loaded` holds the tables of the graph. Nothing is shown of a run that its graph does not explain.
    """
    try:
        replays = RunReplays(graph_of(run, loaded))
        replay_recorded(replays)
        paths = find_paths(replays.graph, replays.path_events())
    except NoValue as error:
        return _as_slices(pl.DataFrame(schema=_COLUMNS)), str(error)
    return _as_slices(pl.DataFrame([*_stretches(replays, paths)], schema=_COLUMNS, orient="row")), ""


def _stretches(
    replays: RunReplays, paths: Sequence[Sequence[PathSegment]]
) -> Iterator[tuple[int, int, int, int, str]]:
    """Yield what paths do at a time: trace, step, start and end on the clock of the trace, and what it is."""
    labels, operations = replays.path_labels(), replays.run.operations
    traces = operations["trace"].to_list()
    shift = (
        operations.select(pl.col("offset_ns").fill_null(0) + pl.col("start_ns").min()).to_series().to_list()
    )

    def placed(segment: PathSegment) -> tuple[int, int, str]:
        operation = labels.operation(segment.event)
        name = labels.kind(segment.event) if segment.explained else UNEXPLAINED
        return traces[operation], shift[operation], name

    for step, path in zip(replays.steps, paths, strict=True):
        for (trace, offset, name), stretch in groupby(path, placed):
            segments = [*stretch]
            begin, end = round(segments[0].start) + offset, round(segments[-1].end) + offset
            yield trace, step, begin, end, name


def _as_slices(rows: pl.DataFrame) -> pl.DataFrame:
    """Return stretches as slices; those beside a change of rank are joined, step by step."""
    other = (pl.col("trace") != pl.col("trace").shift(way).over("step") for way in (1, -1))
    beside = pl.any_horizontal(*(each.fill_null(value=False) for each in other))
    marked = rows.with_columns(beside=beside)
    place = pl.int_range(pl.len()).over("step")
    role = pl.when(place == 0).then(pl.lit("s")).when(place == pl.len().over("step") - 1).then(pl.lit("f"))
    joined = marked.filter("beside").select(
        "step",
        "start_ns",
        "trace",
        role.otherwise(pl.lit("t")).alias("role"),
        flow=pl.col("step") + FIRST_FLOW,
    )
    placed = marked.join(joined, on=["step", "start_ns", "trace"], how="left", maintain_order="left")
    return slices(placed, CRITICAL, args=pl.lit(None)).with_columns(trace=placed["trace"])
