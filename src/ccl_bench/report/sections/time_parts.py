"""Where the time of a mean step went: computing, communicating, copying, nothing; and in which phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.bars import LYING, bars, stacked
from ccl_bench.report.numbers import duration, percent, time_unit
from ccl_bench.report.parts import Chart, Quantity, Section
from ccl_bench.report.sections.seen import OF_STEP, absent, table, tile, together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.parts import Cell, Table
    from ccl_bench.report.sections.seen import Seen
    from ccl_bench.result.observation import TimeParts

KEY, TITLE = "time", "Where the time goes"

PARTS = {
    "compute": ("compute_s", "var(--compute)"),
    "fused": ("fused_s", "var(--c5)"),
    "exposed communication": ("exposed_communication_s", "var(--communication)"),
    "exposed memory": ("exposed_memory_s", "var(--memory)"),
    "idle": ("idle_s", "var(--idle)"),
}
"""Part of a step → its field and colour; together they are the step."""

_FUSED = "Fused is matrix products that communicate in the same kernel, neither hidden nor exposed. "

_PHASES = ("forward_time", "backward_time", "optimizer_time")
_CAUSES = {
    "host": "the host had not launched the next work",
    "kernel": "a short gap between kernels",
    "other": "something else, such as another stream",
}


def time_parts(looked: Seen) -> Section:
    """Return the section."""
    parts, busy = looked.series.time_parts, looked.valued("gpu_busy")
    if not parts or busy is None:
        return absent(KEY, TITLE, looked.why("gpu_busy"))
    shown = _shown(parts)
    numbers = (
        *tile(looked, "gpu_busy", "Device busy"),
        *tile(looked, "gpu_idle", "Device idle"),
        *tile(looked, "communication_fraction", "In communication"),
        *tile(looked, "comm_comp_overlap", "Communication hidden under compute"),
        *tile(looked, "exposed_communication_time", "Exposed communication", note=_of_step(looked)),
    )
    return Section(
        KEY,
        TITLE,
        "Exposed communication runs while nothing computes, exposed memory is copies and sets while nothing "
        f"else runs, idle is the rest. {_FUSED if 'fused' in shown else ''}"
        f"The {'five' if 'fused' in shown else 'four'} add up to the traced step as the device saw it. "
        "Shares are of that step, each rank's of its own, mean over ranks.",
        numbers,
        (_by_rank(parts, _shares(busy.details, shown), looked.series.ranks_each), *_phases(looked)),
        tuple(_idle(looked)),
    )


def _shown(parts: Sequence[TimeParts]) -> dict[str, tuple[str, str]]:
    """Return the parts to show: the fused one where any rank has some."""
    has_fused = any(part.fused_s for part in parts)
    return {name: seen for name, seen in PARTS.items() if name != "fused" or has_fused}


def _of_step(looked: Seen) -> str:
    result = looked.valued("exposed_communication_time")
    return f"{percent(result.details['pct_of_step'])} {OF_STEP}" if result else ""


def _shares(busy: dict[str, Any], shown: Iterable[str]) -> dict[str, float]:
    """Return the mean over ranks of the percentage that each part is of the rank's step."""
    steps = [each for each in busy["per_rank_parts_s_per_step"].values() if each["window"] > 0]
    return {
        name: sum(100 * each[name.replace(" ", "_")] / each["window"] for each in steps) / len(steps)
        for name in shown
    }


def _by_rank(parts: Sequence[TimeParts], shares: dict[str, float], ranks_each: int) -> Chart:
    per, unit = time_unit(part.window_s for part in parts)
    shown = _shown(parts)
    rows = [
        (row.rank, {name: getattr(row, field) * per for name, (field, _) in shown.items()}) for row in parts
    ]
    colours = [(name, colour) for name, (_, colour) in shown.items()]
    spec = stacked(rows, colours, title=f"time in a mean step, {unit}", of="rank")
    summary = "Mean over ranks: " + ", ".join(f"{name} {percent(s)}" for name, s in shares.items()) + "."
    note = together(ranks_each, "rank")
    title = "Time in a mean step of each rank"
    cells = _table(parts, shares)
    return Chart("time-parts", title, spec, summary, cells, note, is_wide=len(rows) > LYING)


def _table(parts: Sequence[TimeParts], shares: dict[str, float]) -> Table:
    rows: list[list[Cell]] = []
    shown = _shown(parts)
    for row in parts:
        values = [getattr(row, field) for field, _ in shown.values()]
        rows.append([row.rank, *map(_time, (*values, row.window_s))])
    whole = Quantity(100.0, "100 %")
    rows.append(["mean share", *(Quantity(share, percent(share)) for share in shares.values()), whole])
    return table(("rank", *shown, "step"), rows)


def _time(value: float) -> Quantity:
    return Quantity(value, duration(value))


def _phases(looked: Seen) -> list[Chart]:
    found = next(filter(None, map(looked.valued, _PHASES)), None)
    phases: dict[str, float] = found.details.get("per_phase_s", {}) if found else {}
    shown = {name.replace("_", " "): value for name, value in phases.items() if value}
    if len(shown) < 2:
        return []
    per, unit = time_unit(shown.values())
    spec = bars(
        [(name, value * per) for name, value in shown.items()],
        title=f"busy time in a mean step, {unit}",
        unit=unit,
    )
    largest = max(shown, key=lambda name: shown[name])
    summary = f"Most busy time without communication is {largest}, {duration(shown[largest])} of a mean step."
    rows = [(name, _time(value)) for name, value in shown.items()]
    title = "Busy time of each phase, communication left out"
    return [Chart("phases", title, spec, summary, table(("phase", "time in a mean step"), rows))]


def _idle(looked: Seen) -> Iterator[Table]:
    result = looked.valued("idle_breakdown")
    if result is None:
        return
    details: dict[str, Any] = result.details
    shares: dict[str, float] = details["per_cause_pct"]
    rows = [
        (cause, _time(details[f"{name}_wait_s"]), Quantity(shares[name], percent(shares[name])))
        for name, cause in _CAUSES.items()
    ]
    head = ("device idle because", "time in a mean step", "share of idle, mean over ranks")
    yield table(head, rows, caption="Idle time by cause")
