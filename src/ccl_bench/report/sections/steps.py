"""Sections on steps: step times, and the breakdown of a mean step."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.report.charts.bars import LYING, bars, stacked
from ccl_bench.report.charts.lines import band_over_names, lines_over_names, ranges_over_names
from ccl_bench.report.context import absent, cell, merged_note, table, tile
from ccl_bench.report.formatting import duration, percent, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity
from ccl_bench.report.sections.headline import exposed_share, share_of_step, step_time_label
from ccl_bench.report.theme import COMMUNICATION_PARTS
from ccl_bench.report.verdict import DID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable, Tile
    from ccl_bench.result.details import (
        BusyDetails,
        ExposedDetails,
        IdleDetails,
        LoadImbalanceDetails,
        PhaseDetails,
        StepTimeDetails,
    )
    from ccl_bench.result.report_data import Spread, StepTimes, TimeParts

KEY, TITLE = "steps", "Step times"


def steps(context: Context) -> PageSection:
    """Return the section."""
    times = context.series.step_times
    if times is None:
        return absent(KEY, TITLE, context.why("iteration_wall_clock_time"))
    imbalance = context.valued("load_imbalance_ratio")
    busiest = cast("LoadImbalanceDetails", imbalance.details)["busiest_rank"] if imbalance else None
    slowest = context.valued("iteration_wall_clock_time")
    spread = cast("StepTimeDetails", slowest.details)["spread_s"] if slowest else {}
    notes = []
    if "cv" in spread and "p95" in spread:
        notes.append(
            f"Of the steps of the slowest rank 95 % take at most {duration(spread['p95'])}; "
            f"their standard deviation is {percent(100 * spread['cv'])} of the mean."
        )
    charts = []
    if len(times.by_step) > 1:
        charts.append(_over_steps(times))
    if len(times.by_rank) > 1:
        charts.append(_over_ranks(times, step_time_label(context)))
    return PageSection(
        KEY,
        TITLE if step_time_label(context) == "Step time" else step_time_label(context),
        f"From {times.source}. A step of the run is as long as on its slowest rank.",
        numbers=(
            *tile(context, "iteration_wall_clock_time", step_time_label(context)),
            *tile(
                context,
                "load_imbalance_ratio",
                "Compute, busiest rank over mean",
                note="" if busiest is None else f"most on rank {busiest}",
            ),
        ),
        charts=tuple(charts),
        tables=() if charts else (_spreads("step", times.by_step),),
        notes=tuple(notes),
    )


def _over_steps(times: StepTimes) -> PageChart:
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
        note = merged_note(times.grid.steps_each, "point", "steps")
        by_step = zip(times.grid.steps, *times.grid.values_s, strict=True)
        data = table(
            ("step", *(f"rank {rank}" for rank in times.grid.ranks)),
            [(step, *(cell(value, duration, "") for value in values)) for step, *values in by_step],
        )
        return PageChart("step-times", "Step time on each rank", spec, summary, data, note)
    spec = band_over_names(_scaled(times.by_step, per), x="step", y=y)
    note = "The band spans the fastest to the slowest rank, the line is the median rank. "
    note += merged_note(times.steps_each, "step shown", "neighbouring steps", "all of")
    return PageChart(
        "step-times", "Step time over ranks", spec, summary, _spreads("step", times.by_step), note
    )


def _over_ranks(times: StepTimes, label: str) -> PageChart:
    per, unit = time_unit(spread.max_s for spread in times.by_rank)
    spec = ranges_over_names(_scaled(times.by_rank, per), x="rank", y=f"{label.lower()}, {unit}")
    slowest = max(times.by_rank, key=lambda spread: spread.p50_s)
    fastest = min(times.by_rank, key=lambda spread: spread.p50_s)
    least, most = duration(fastest.p50_s), duration(slowest.p50_s)
    what = "step" if label == "Step time" else label.lower()
    summary = f"Median {what}s take from {least} on rank {fastest.name} to {most} on rank {slowest.name}."
    if least == most:
        summary = f"The median {what} takes {most} on every rank."
    several = any(spread.count > 1 for spread in times.by_rank)
    note = "Dots are medians, bars span the shortest to the longest step. " if several else ""
    note += merged_note(times.ranks_each, "entry", "neighbouring ranks", "all of")
    rows = _spreads("rank", times.by_rank)
    return PageChart("step-times-of-ranks", f"{label}s of each rank", spec, summary, rows, note.strip())


def _scaled(rows: Sequence[Spread], per: float) -> list[tuple[str, float, float, float]]:
    return [(row.name, row.min_s * per, row.p50_s * per, row.max_s * per) for row in rows]


def _spreads(what: str, rows: Sequence[Spread]) -> PageTable:
    cells = [
        (row.name, f"{row.count:,}", *(cell(value, duration) for value in (row.min_s, row.p50_s, row.max_s)))
        for row in rows
    ]
    return table((what, "step times", "shortest", "median", "longest"), cells)


TIME_KEY, TIME_TITLE = "time", "Where the time goes"

PARTS = {
    "compute": ("compute_s", "var(--compute)"),
    "fused": ("fused_s", "var(--c5)"),
    "waiting": ("exposed_wait_s", COMMUNICATION_PARTS["waiting"]),
    "transfer": ("exposed_transfer_s", COMMUNICATION_PARTS["transfer"]),
    "unknown communication": ("exposed_unknown_s", COMMUNICATION_PARTS["unknown"]),
    "exposed communication": ("exposed_communication_s", "var(--communication)"),
    "exposed memory": ("exposed_memory_s", "var(--memory)"),
    "idle": ("idle_s", "var(--idle)"),
}
"""Part of a step → its field and colour; together, and communication divided or whole, they are the step."""

_KEYS = {"unknown communication": "unknown"}
"""Parts that have another name in details."""

_DIVIDED = "Communication is shown while nothing computes: it waits for late ranks, then transfers data. "
_UNKNOWN = "Communication that the traces do not divide is unknown. "
_WHOLE = "Exposed communication runs while nothing computes; the traces do not show how much of it waits. "
_FUSED = "Fused kernels multiply matrices and communicate; they are neither hidden nor exposed. "

_PHASES = ("forward_time", "backward_time", "optimizer_time")
_CAUSES = {
    "host": "the host had not launched the next work",
    "kernel": "a short gap between kernels",
    "other": "something else, such as another stream",
}


def time_breakdown(context: Context) -> PageSection:
    """Return the section."""
    parts, busy = context.series.time_parts, context.valued("gpu_busy")
    if not parts or busy is None:
        return absent(TIME_KEY, TIME_TITLE, context.why("gpu_busy"))
    is_divided = any(part.exposed_wait_s or part.exposed_transfer_s for part in parts)
    left_out = {"exposed communication"} if is_divided else {"waiting", "transfer", "unknown communication"}
    if not any(part.fused_s for part in parts):
        left_out.add("fused")
    if not any(part.exposed_unknown_s for part in parts):
        left_out.add("unknown communication")
    shown_parts = {name: seen for name, seen in PARTS.items() if name not in left_out}
    about = _WHOLE if any(part.exposed_communication_s for part in parts) else ""
    if "waiting" in shown_parts:
        about = _DIVIDED + (_UNKNOWN if "unknown communication" in shown_parts else "")
    numbers = (
        *tile(context, "gpu_busy", "Device busy"),
        *tile(context, "gpu_idle", "Device idle"),
        *tile(context, "communication_fraction", "In communication"),
        *tile(context, "comm_comp_overlap", "Communication hidden under compute"),
        *tile(context, "exposed_communication_time", "Exposed communication", note=exposed_share(context)),
        *_exposed("exposed_wait_time", "Exposed waiting", context),
        *_exposed("exposed_transfer_time", "Exposed transfer", context),
    )
    shares = _shares(context, cast("BusyDetails", busy.details), shown_parts)
    return PageSection(
        TIME_KEY,
        TIME_TITLE,
        f"{about}"
        "Exposed memory is copies and sets while nothing else runs. Idle is the rest. "
        f"{_FUSED if 'fused' in shown_parts else ''}"
        "Together they are the traced step. Shares refer to each rank's own step; the table shows "
        "their mean over ranks.",
        numbers,
        (
            _by_rank(parts, shown_parts, shares, context.series.ranks_each),
            *_phases(context),
        ),
        (*_idle(context), *_by_host(context)),
    )


def _exposed(metric: str, label: str, context: Context) -> list[Tile]:
    return tile(context, metric, label, note=share_of_step(context, metric))


def _shares(context: Context, busy: BusyDetails, shown_parts: Iterable[str]) -> dict[str, float]:
    """Return each part as percent of a rank's step, mean over ranks."""
    exposed = context.valued("exposed_communication_time")
    divided = cast("ExposedDetails", exposed.details).get("per_rank_parts_s", {}) if exposed else {}
    steps = [
        {**each, **divided.get(rank, {})}
        for rank, each in busy["per_rank_parts_s_per_step"].items()
        if each["window"] > 0
    ]
    keys = {name: _KEYS.get(name, name.replace(" ", "_")) for name in shown_parts}
    return {
        name: sum(100 * each[key] / each["window"] for each in steps) / len(steps)
        for name, key in keys.items()
    }


def _by_rank(
    parts: Sequence[TimeParts],
    shown_parts: dict[str, tuple[str, str]],
    shares: dict[str, float],
    ranks_each: int,
) -> PageChart:
    per, unit = time_unit(part.window_s for part in parts)
    rows = [
        (row.rank, {name: getattr(row, field) * per for name, (field, _) in shown_parts.items()})
        for row in parts
    ]
    colours = [(name, colour) for name, (_, colour) in shown_parts.items()]
    spec = stacked(rows, colours, title=f"time in a mean step, {unit}", of="rank")
    summary = "Mean over ranks: " + ", ".join(f"{name} {percent(s)}" for name, s in shares.items()) + "."
    note = merged_note(ranks_each, "rank", "neighbouring ranks")
    title = "Time in a mean step of each rank"
    cells: list[tuple[Cell, ...]] = []
    for row in parts:
        values = [getattr(row, field) for field, _ in shown_parts.values()]
        cells.append((row.rank, *(cell(value, duration) for value in (*values, row.window_s))))
    means = (cell(share, percent) for share in shares.values())
    cells.append(("mean share", *means, Quantity(100.0, "100 %")))
    data = table(("rank", *shown_parts, "step"), cells)
    return PageChart("time-parts", title, spec, summary, data, note, is_wide=len(rows) > LYING)


def _phases(context: Context) -> list[PageChart]:
    result = next(filter(None, map(context.valued, _PHASES)), None)
    phases = cast("PhaseDetails", result.details)["per_phase_s"] if result else {}
    times = {name.replace("_", " "): value for name, value in phases.items() if value}
    if len(times) < 2:
        return []
    per, unit = time_unit(times.values())
    spec = bars(
        [(name, value * per) for name, value in times.items()],
        title=f"busy time in a mean step, {unit}",
        unit=unit,
    )
    largest = max(times, key=lambda name: times[name])
    summary = (
        f"The largest phase without communication is {largest}, {duration(times[largest])} of a mean step."
    )
    rows = [(name, cell(value, duration)) for name, value in times.items()]
    title = "Busy time of each phase, communication left out"
    return [PageChart("phases", title, spec, summary, table(("phase", "time in a mean step"), rows))]


def _idle(context: Context) -> Iterator[PageTable]:
    result = context.valued("idle_breakdown")
    if result is None:
        return
    details = cast("IdleDetails", result.details)
    shares = details["per_cause_pct"]
    rows = [
        (cause, cell(wait_s, duration), cell(shares[name], percent))
        for (name, cause), wait_s in zip(
            _CAUSES.items(),
            (details["host_wait_s"], details["kernel_wait_s"], details["other_wait_s"]),
            strict=True,
        )
    ]
    head = ("device idle because", "time in a mean step", "share of idle, mean over ranks")
    yield table(head, rows, caption="Idle time by cause")


def _by_host(context: Context) -> Iterator[PageTable]:
    """Yield the idle time of the verdict by what hosts did; its rows add up to it."""
    verdict = context.diagnosed.verdict if context.diagnosed is not None else None
    if verdict is None or not verdict.idle:
        return
    rows: list[tuple[Cell, ...]] = [
        (DID[part.cause], part.name or "", cell(100 * part.share, percent)) for part in verdict.idle
    ]
    rows.append(("together", "", cell(100 * verdict.parts["idle"], percent)))
    head = ("devices are idle", "most of it in", "share of the step, mean over ranks")
    yield table(head, rows, caption="What hosts did while devices were idle", left=(0, 1), wide=(1,))
