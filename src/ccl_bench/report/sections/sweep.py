"""The section on a serving sweep: throughput per GPU against interactivity and time to first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.text import counted
from ccl_bench.metrics.shared.serving import title as tool_title
from ccl_bench.report.charts.points import points_with_front
from ccl_bench.report.context import absent, cell, table
from ccl_bench.report.formatting import amount, duration, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable
    from ccl_bench.result.sweep import Repeated, Sweep, SweepPoint

KEY, TITLE = "serving-sweep", "Serving sweep"

_STATED_APART = {"tool", "devices"}

_ABOUT = (
    "One configuration under several loads. Interactivity is 1 / TPOT: the output tokens per second of one "
    "user. No other point beats one on the Pareto front in throughput and interactivity together."
)


def sweep(context: Context) -> PageSection:
    """Return the section."""
    measured = context.series.sweep
    if measured is None:
        return absent(KEY, TITLE, f"No curve: {context.series.why_no_sweep}.")
    return PageSection(
        KEY,
        TITLE,
        _ABOUT,
        charts=(*_against_interactivity(measured), *_against_ttft(measured)),
        tables=(_points(measured), *_objective(measured)),
        notes=tuple(_notes(measured)),
    )


def unit_of(measured: Sweep) -> str:
    """Return the unit of the throughput of a sweep's curve."""
    return "output tokens/s per GPU" if measured.devices else "output tokens/s, all GPUs"


def configuration_words(measured: Sweep) -> str:
    """Return the configuration of a sweep in words."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in measured.configuration.items()
        if name not in _STATED_APART and value not in {"false", "none"}
    )


def _notes(measured: Sweep) -> Iterator[str]:
    words = configuration_words(measured)
    yield f"{tool_title(measured.tool)}{': ' + words if words else ''}."
    if measured.devices:
        yield f"{counted(measured.devices, 'GPU')}, from {measured.devices_from}."
    else:
        yield f"Throughput is that of all GPUs, not per GPU: {measured.why_no_devices}."
    if measured.knee is not None:
        at = measured.points[measured.knee]
        yield (
            f"The knee of the front is at {at.load}, farthest above the line between its ends with both "
            "axes logarithmic (Kneedle)."
        )
    elif measured.front:
        yield "The front has no knee: it has fewer than 3 points, or none above the line between its ends."
    if failed := sum(point.failed for point in measured.points):
        yield f"{counted(failed, 'request')} failed or were cancelled; throughput counts the others."


def _points(measured: Sweep) -> PageTable:
    """Return the table of all points; columns that no point fills are left out."""
    devices = measured.devices or 1
    per = " per GPU" if measured.devices else ""
    columns: dict[str, Callable[[SweepPoint], Cell]] = {
        "TTFT": lambda point: _spread(point.ttft_s, duration),
        "TPOT": lambda point: _spread(point.tpot_s, duration),
        "ITL": lambda point: _spread(point.itl_s, duration),
        "tokens/s per user": lambda point: _spread(point.interactivity, amount),
        f"output tokens/s{per}": lambda point: _spread(point.output_throughput, amount, devices),
        f"tokens/s{per}": lambda point: _spread(point.total_throughput, amount, devices),
        "goodput, requests/s": lambda point: _spread(point.goodput, amount),
    }
    cells = {name: [read(point) for point in measured.points] for name, read in columns.items()}
    used = [name for name in columns if any(each != "-" for each in cells[name])]
    rows = [
        (
            point.load,
            *(cells[name][place] for name in used),
            str(point.repeats),
            "knee" if place == measured.knee else "front" if place in measured.front else "",
        )
        for place, point in enumerate(measured.points)
    ]
    note = "Tokens/s count input and output." if f"tokens/s{per}" in used else ""
    if any(point.repeats > 1 for point in measured.points):
        note = f"{note} Medians over repeats, with the lowest and highest in brackets.".strip()
    return table(
        ("load", *used, "results", "Pareto"),
        rows,
        caption="Points",
        note=note,
        left=(0, len(used) + 2),
    )


def _spread(value: Repeated | None, read: Callable[[float], str], devices: int = 1) -> Cell:
    """Return a median, with the extremes of repeats that differ."""
    if value is None:
        return "-"
    median, low, high = (each / devices for each in (value.median, value.min, value.max))
    if low == high:
        return cell(median, read)
    return Quantity(median, f"{read(median)} ({read(low)} to {read(high)})")


def _objective(measured: Sweep) -> Iterator[PageTable]:
    at = measured.objective
    if at is None:
        return
    outside = "out of the measured range"
    yield table(
        ("objective", "tokens/s per user", unit_of(measured)),
        [
            (
                f"TPOT at most {duration(at.tpot_s)}",
                cell(at.interactivity, amount),
                cell(at.throughput, amount, outside),
            )
        ],
        caption="Interpolated, not measured",
        note=(
            "Between neighbours on the front, both axes logarithmic. At measured points left out of "
            "343 published curves, the mean error is 12 %, mostly too low. That of TTFT is 22 %, so TTFT "
            "between points is not estimated."
        ),
    )


def _values(load: str, x: Repeated, per: float, y: Repeated, devices: int) -> dict[str, Any]:
    """Return a point of a chart: `x` times `per`, `y` over devices."""
    return {
        "name": load,
        "x": x.median * per,
        "x_low": x.min * per,
        "x_high": x.max * per,
        "y": y.median / devices,
        "y_low": y.min / devices,
        "y_high": y.max / devices,
    }


def _against_interactivity(measured: Sweep) -> Iterator[PageChart]:
    drawn = [
        (place, point.load, point.interactivity, point.output_throughput)
        for place, point in enumerate(measured.points)
        if point.interactivity is not None and point.output_throughput is not None
    ]
    if len(drawn) < 2:
        return
    unit, objective = unit_of(measured), measured.objective
    points = [_values(load, x, 1.0, y, measured.devices or 1) for _, load, x, y in drawn]
    where = {place: number for number, (place, *_) in enumerate(drawn)}
    hollow = (
        [{"name": "objective", "x": objective.interactivity, "y": objective.throughput}]
        if objective and objective.throughput is not None
        else []
    )
    spec = points_with_front(
        points,
        x="interactivity, tokens/s per user",
        y=unit,
        front=[where[place] for place in measured.front],
        labels={} if measured.knee is None else {where[measured.knee]: "knee"},
        hollow=hollow,
    )
    ends = [points[where[measured.front[place]]] for place in (0, -1)]
    spans = [f"{amount(end['y'])} at {amount(end['x'])} tokens/s per user ({end['name']})" for end in ends]
    summary = f"The front goes from {spans[0]} to {spans[1]}, in {unit}."
    if len(measured.front) == 1:
        summary = f"One point beats all others: {spans[0]}, in {unit}."
    rows = [(each["name"], cell(each["x"], amount), cell(each["y"], amount)) for each in points]
    yield PageChart(
        "sweep-interactivity",
        "Throughput against interactivity",
        spec,
        summary,
        table(("load", "tokens/s per user", unit), rows),
        "Bars are the range of repeats." if any(point.repeats > 1 for point in measured.points) else "",
    )


def _against_ttft(measured: Sweep) -> Iterator[PageChart]:
    drawn = [
        (point.load, point.ttft_s, point.output_throughput)
        for point in measured.points
        if point.ttft_s is not None and point.output_throughput is not None
    ]
    if len(drawn) < 2:
        return
    per, unit_x = time_unit([max(ttft.median for _, ttft, _ in drawn)])
    unit = unit_of(measured)
    points = [_values(load, ttft, per, y, measured.devices or 1) for load, ttft, y in drawn]
    spec = points_with_front(points, x=f"mean time to first token, {unit_x}", y=unit)
    (least, *_), (most, *_) = sorted(drawn, key=lambda each: each[1].median)[:: len(drawn) - 1]
    low, high = (f"{duration(edge([ttft.median for _, ttft, _ in drawn]))}" for edge in (min, max))
    rows = [
        (load, cell(ttft.median, duration), cell(each["y"], amount))
        for (load, ttft, _), each in zip(drawn, points, strict=True)
    ]
    yield PageChart(
        "sweep-ttft",
        "Throughput against time to first token",
        spec,
        f"The mean TTFT goes from {low} ({least}) to {high} ({most}).",
        table(("load", "TTFT", unit), rows),
        "Measured points only.",
    )
