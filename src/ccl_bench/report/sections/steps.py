"""How long steps took: over the run, and on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.charts.lines import band_over_names, lines_over_names, ranges_over_names
from ccl_bench.report.numbers import duration, time_unit
from ccl_bench.report.parts import Chart, Quantity, Section
from ccl_bench.report.sections.headline import step_time_label
from ccl_bench.report.sections.seen import absent, table, tile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.report.parts import Cell, Table
    from ccl_bench.report.sections.seen import Seen
    from ccl_bench.result.observation import Grid, Spread, StepTimes

KEY, TITLE = "steps", "Step times"


def steps(looked: Seen) -> Section:
    """Return the section."""
    times = looked.series.step_times
    if times is None:
        return absent(KEY, TITLE, looked.why("iteration_wall_clock_time"))
    charts = []
    if len(times.by_step) > 1:
        charts.append(_over_steps(times))
    if len(times.by_rank) > 1:
        charts.append(_over_ranks(times))
    return Section(
        KEY,
        TITLE if step_time_label(looked) == "Step time" else step_time_label(looked),
        f"From {times.source}. A step of the run is as long as that of its slowest rank.",
        numbers=(
            *tile(looked, "iteration_wall_clock_time", step_time_label(looked)),
            *tile(looked, "load_imbalance_ratio", "Compute, busiest rank over mean"),
        ),
        charts=tuple(charts),
        tables=() if charts else (_spreads("step", times.by_step),),
    )


def _over_steps(times: StepTimes) -> Chart:
    per, unit = time_unit(spread.max_s for spread in times.by_step)
    y = f"step time, {unit}"
    shortest = min(times.by_step, key=lambda spread: spread.p50_s)
    longest = max(times.by_step, key=lambda spread: spread.max_s)
    summary = (
        f"The longest step is {longest.name} with {duration(longest.max_s)}; "
        f"step {shortest.name} has the shortest median, {duration(shortest.p50_s)}."
    )
    if times.grid is not None:
        rows = {
            rank: [value and value * per for value in row]
            for rank, row in zip(times.grid.ranks, times.grid.values_s, strict=True)
        }
        spec = lines_over_names(times.grid.steps, rows, x="step", y=y, of="rank")
        note = _each(times.grid.steps_each, "point", "the mean of", "steps")
        return Chart("step-times", "Step time on each rank", spec, summary, _grid(times.grid), note)
    spec = band_over_names(_scaled(times.by_step, per), x="step", y=y)
    note = "The band reaches from the fastest to the slowest rank, the line is the median rank. "
    note += _each(times.steps_each, "step shown", "all of", "neighbouring steps")
    return Chart("step-times", "Step time over ranks", spec, summary, _spreads("step", times.by_step), note)


def _over_ranks(times: StepTimes) -> Chart:
    per, unit = time_unit(spread.max_s for spread in times.by_rank)
    spec = ranges_over_names(_scaled(times.by_rank, per), x="rank", y=f"step time, {unit}")
    slowest = max(times.by_rank, key=lambda spread: spread.p50_s)
    fastest = min(times.by_rank, key=lambda spread: spread.p50_s)
    least, most = duration(fastest.p50_s), duration(slowest.p50_s)
    summary = f"Median steps take from {least} on rank {fastest.name} to {most} on rank {slowest.name}."
    if least == most:
        summary = f"The median step takes {most} on every rank."
    several = any(spread.count > 1 for spread in times.by_rank)
    note = "Dots are medians, strokes reach from the shortest to the longest step. " if several else ""
    note += _each(times.ranks_each, "entry", "all of", "neighbouring ranks")
    rows = _spreads("rank", times.by_rank)
    return Chart("step-times-of-ranks", "Step times of each rank", spec, summary, rows, note.strip())


def _each(count: int, one: str, stands_for: str, many: str) -> str:
    return f"Each {one} is {stands_for} up to {count:,} {many}." if count > 1 else ""


def _scaled(rows: Sequence[Spread], per: float) -> list[tuple[str, float, float, float]]:
    return [(row.name, row.min_s * per, row.p50_s * per, row.max_s * per) for row in rows]


def _spreads(what: str, rows: Sequence[Spread]) -> Table:
    cells: list[tuple[Cell, ...]] = [
        (row.name, f"{row.count:,}", *(Quantity(value, duration(value)) for value in _of(row)))
        for row in rows
    ]
    return table((what, "step times", "shortest", "median", "longest"), cells)


def _of(row: Spread) -> tuple[float, float, float]:
    return row.min_s, row.p50_s, row.max_s


def _grid(found: Grid) -> Table:
    by_step = zip(found.steps, *found.values_s, strict=True)
    rows = [(step, *(_cell(value) for value in values)) for step, *values in by_step]
    return table(("step", *(f"rank {rank}" for rank in found.ranks)), rows)


def _cell(value: float | None) -> Cell:
    return "" if value is None else Quantity(value, duration(value))
