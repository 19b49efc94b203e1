"""What was communicated, by collective and by parallelism dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.bars import bars
from ccl_bench.report.numbers import GIGA, amount, duration, percent, size, time_unit
from ccl_bench.report.parts import Chart, Quantity, Section
from ccl_bench.report.sections.seen import absent, table, tile
from ccl_bench.report.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.report.parts import Cell, Table
    from ccl_bench.report.sections.seen import Seen

KEY, TITLE = "communication", "Communication"

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def communication(looked: Seen) -> Section:
    """Return the section."""
    traffic = looked.valued("traffic_distribution_16")
    times = looked.valued("total_communication_time")
    if traffic is None and times is None:
        return absent(KEY, TITLE, looked.why("traffic_distribution_16", "total_communication_time"))
    bytes_of = {
        name: value * GIGA
        for name, value in (traffic.details["per_collective_gb"] if traffic else {}).items()
    }
    calls: dict[str, float] = traffic.details["per_collective_calls"] if traffic else _calls(looked)
    unions: dict[str, float] = times.details.get("per_collective_s", {}) if times else {}
    dimensions = _dimensions(looked)
    charts = [
        *_bars("collective", "time", {name: unions[name] for name in sorted(unions)}),
        *_bars("collective", "bytes", bytes_of),
        *_bars("dimension", "time", {n: row["time_s_per_gpu_and_step"] for n, row in dimensions.items()}),
        *_bars(
            "dimension",
            "bytes",
            {n: moved for n, row in dimensions.items() if (moved := _moved(row)) is not None},
        ),
    ]
    tables = [_by_collective(bytes_of, calls, unions, _silent(traffic.details if traffic else {}))]
    tables += [_by_dimension(dimensions)] if dimensions else []
    return Section(
        KEY,
        TITLE,
        "What one GPU communicates in a mean step. Time is that with at least one call running, waiting for "
        "other ranks included; bytes are the message as nccl-tests counts it.",
        (
            *tile(looked, "total_communication_time", "Time in communication"),
            *tile(looked, "traffic_distribution_16", "Bytes of one GPU"),
            *tile(looked, "coll_call_num", "Calls of rank 0" if _is_first(looked) else "Calls", shown=amount),
        ),
        tuple(charts),
        tuple(tables),
    )


def _calls(looked: Seen) -> dict[str, float]:
    result = looked.valued("coll_call_num")
    return result.details.get("per_collective", {}) if result else {}


def _is_first(looked: Seen) -> bool:
    result = looked.valued("coll_call_num")
    return bool(result and result.details.get("rank") == "0")


def _silent(details: Mapping[str, Any]) -> str:
    count = details.get("unattributed_calls_count", 0)
    return f"{counted(count, 'call')} of unknown size in all." if count else ""


def _dimensions(looked: Seen) -> dict[str, dict[str, Any]]:
    found = looked.valued("traffic_distribution")
    return found.details["per_dimension"] if found else {}


def _moved(row: dict[str, Any]) -> float | None:
    """Return the bytes of a dimension, None where none of its calls has a size."""
    moved = row["bytes_per_gpu_and_step"]
    return None if moved is None else float(moved)


def _bars(by: str, what: str, values: dict[str, float]) -> list[Chart]:
    """Return a chart where there is something to compare."""
    if len(values) < 2:
        return []
    is_time = what == "time"
    per, unit = time_unit(values.values()) if is_time else _size_unit(values)
    ordered = sorted(values, key=lambda name: -values[name])
    title = f"{what} in a mean step, {unit}"
    spec = bars(
        [(name, values[name] * per) for name in ordered],
        title=title,
        unit=unit,
        colour="var(--communication)" if is_time else "var(--c5)",
    )
    read = duration if is_time else size
    most, least = ordered[0], ordered[-1]
    summary = f"Most is {most} with {read(values[most])}, least {least} with {read(values[least])}."
    rows = [(name, Quantity(values[name], read(values[name]))) for name in ordered]
    heading = f"{what.capitalize()} by {'collective' if by == 'collective' else 'parallelism dimension'}"
    return [Chart(f"{what}-by-{by}", heading, spec, summary, table((by, what), rows))]


def _size_unit(values: Mapping[str, float]) -> tuple[float, str]:
    largest = max(values.values(), default=0.0)
    return next(((1 / scale, unit) for scale, unit in _SIZES if largest >= scale), (1.0, "B"))


def _by_collective(
    bytes_of: dict[str, float], calls: dict[str, float], unions: dict[str, float], note: str
) -> Table:
    total = sum(bytes_of.values())
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            Quantity(calls[name], amount(calls[name])) if name in calls else "-",
            Quantity(bytes_of[name], size(bytes_of[name])) if name in bytes_of else "-",
            percent(100 * bytes_of[name] / total) if total and name in bytes_of else "-",
            Quantity(unions[name], duration(unions[name])) if name in unions else "-",
        )
        for name in dict.fromkeys((*bytes_of, *sorted({**unions, **calls})))
    ]
    head = ("collective", "calls", "bytes", "share of bytes", "time")
    return table(head, rows, caption="By collective", note=note)


def _by_dimension(dimensions: dict[str, dict[str, Any]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            Quantity(row["calls_per_gpu_and_step"], amount(row["calls_per_gpu_and_step"])),
            "unknown" if (moved := _moved(row)) is None else Quantity(moved, size(moved)),
            "unknown" if (share := row["share_pct"]) is None else percent(share),
            Quantity(row["time_s_per_gpu_and_step"], duration(row["time_s_per_gpu_and_step"])),
        )
        for name, row in dimensions.items()
    ]
    head = ("dimension", "calls", "bytes", "share of bytes", "time")
    return table(head, rows, caption="By parallelism dimension")
