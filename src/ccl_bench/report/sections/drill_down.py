"""Drill-down lists: operators, ranges, kernels, matrix products, kinds of calls, traffic between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.text import counted
from ccl_bench.report.charts.bars import heat_map
from ccl_bench.report.charts.flames import flame
from ccl_bench.report.context import absent, cell, table
from ccl_bench.report.formatting import amount, duration, percent, size, size_unit, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity, Short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable
    from ccl_bench.result.drill_down import DrillDown, PairTraffic, ProductShape, RangeTime

_LONGEST = 64
_IN_TERMINAL = 10
"""Number of rows of a list that a terminal shows."""

_TERA = 1e12
_MOST_DRAWN = 64
"""Number of ranks up to which traffic between ranks is drawn."""


def _left_out(drill_down: DrillDown, name: str, noun: str) -> str:
    count = drill_down.left_out.get(name, 0)
    return f"{counted(count, noun)} with less time not shown." if count else ""


def _short(name: str, full: str = "") -> Cell:
    """Return a name, with its full text if that differs or may not fit into a column."""
    whole = full or name
    return name if len(name) <= _LONGEST and name == whole else Short(name, whole)


def operators(context: Context) -> PageSection:
    """Return the section of operators and named ranges."""
    key, title = "operators", "Operators and named ranges"
    drill_down = context.series.drill_down
    if not drill_down.operators and not drill_down.ranges:
        return absent(key, title, context.why("gpu_busy"))
    about = (
        "One rank in a mean step. Own time is CPU time outside nested operators. Device time "
        "is the sum of the durations of the work that an operator or range launched itself, "
        "without the work of nested ones."
    )
    tables = []
    if drill_down.operators:
        rows = [
            (
                _short(each.name),
                cell(each.calls, amount),
                cell(each.own_s, duration),
                cell(each.host_s, duration),
                cell(each.launched, amount),
                cell(each.device_s, duration),
            )
            for each in drill_down.operators
        ]
        head = ("operator", "calls", "own time", "time with callees", "launched", "device time")
        note = _left_out(drill_down, "operators", "operator")
        tables.append(table(head, rows, caption="Operators", note=note, first=_IN_TERMINAL))
    if drill_down.ranges:
        of_ranges = [
            (
                _short(" › ".join(each.path)),
                cell(each.calls, amount),
                cell(each.host_s, duration),
                cell(each.launched, amount),
                cell(each.device_s, duration),
            )
            for each in drill_down.ranges
        ]
        columns = ("range", "calls", "time on the CPU", "launched", "device time")
        note = _left_out(drill_down, "ranges", "range")
        tables.append(
            table(columns, of_ranges, caption="Named ranges", note=note, first=_IN_TERMINAL, wide=(0,))
        )
    drawn = tuple(_range_flame(drill_down.ranges))
    return PageSection(key, title, about, charts=drawn, tables=tuple(tables))


def _range_flame(ranges: Sequence[RangeTime]) -> Iterator[PageChart]:
    """Yield the flame graph of device time; on a run without a device of time on the CPU."""
    on_device = any(each.device_s for each in ranges)
    every = [(each.path, each.device_s) for each in ranges] if on_device else list(_own_times(ranges))
    times = [(path, value) for path, value in every if value > 0]
    if len(times) < 2:
        return
    per, unit = time_unit(value for _, value in times)
    spec = flame([(path, value * per) for path, value in times], of="range", unit=unit, shorter={})
    what = "Device time" if on_device else "Time on the CPU"
    largest = max(times, key=lambda item: item[1])
    summary = f"The largest part is {' › '.join(largest[0])} itself: {duration(largest[1])} of a mean step."
    rows = [(_short(" › ".join(path)), cell(value, duration)) for path, value in times]
    data = table(("range", "own time"), rows)
    yield PageChart("ranges", f"{what} by named range", spec, summary, data, is_wide=True)


def _own_times(ranges: Sequence[RangeTime]) -> Iterator[tuple[list[str], float]]:
    """Yield the time on the CPU of each path, without that of its direct children."""
    inside: dict[tuple[str, ...], float] = {}
    for each in ranges:
        around = tuple(each.path[:-1])
        inside[around] = inside.get(around, 0.0) + each.host_s
    for each in ranges:
        yield each.path, max(each.host_s - inside.get(tuple(each.path), 0.0), 0.0)


def kernel_table(drill_down: DrillDown) -> PageTable:
    """Return the kernels of a mean step, the longest first."""
    rows = [
        (
            _short(each.short, each.name),
            each.type,
            cell(each.calls, amount),
            cell(each.time_s, duration),
            cell(each.time_s / each.calls if each.calls else None, duration),
            cell(each.pct, percent),
        )
        for each in drill_down.kernels
    ]
    head = ("kernel", "type", "calls", "time", "mean", "share of kernel time")
    note = _left_out(drill_down, "kernels", "kernel")
    return table(
        head, rows, caption="Kernels of one rank in a mean step", note=note, first=_IN_TERMINAL, left=(0, 1)
    )


def products(context: Context) -> PageSection:
    """Return the section of matrix products."""
    key, title = "products", "Matrix products"
    drill_down = context.series.drill_down
    if not drill_down.products:
        why = "No shapes of matrix products were recorded: record with record_shapes=True of torch.profiler."
        return absent(key, title, why if context.valued("gpu_busy") else context.why("gpu_busy"))
    on_device = drill_down.products[0].on_device
    time = "of the kernels that it launched" if on_device else "of its operators on the CPU"
    about = (
        f"One rank in a mean step, by shape; time is {time}. A product of M × K and K × N counts as 2·M·K·N "
        "operations. The peak is the dense one of the element type in the device catalog."
    )
    rows: list[list[Cell]] = []
    for each in drill_down.products:
        rate, peak = each.flops_per_s, _peak(context, each)
        share = None if rate is None or peak is None else 100 * rate / peak
        sides = (each.batch, each.rows, each.inner, each.columns)
        row: list[Cell] = [each.name, *(Quantity(side, f"{side:,}") for side in sides), _dtype(each)]
        row += [cell(each.calls, amount), cell(each.time_s, duration)]
        row += [cell(each.time_s / each.calls if each.calls else None, duration)]
        row += [cell(None if rate is None else rate / _TERA, amount), cell(share, percent)]
        rows.append(row)
    head = (
        *("operator", "batch", "M", "K", "N", "element type", "calls", "time"),
        *("mean", "TFLOP/s", "of the peak"),
    )
    note = _left_out(drill_down, "products", "shape")
    shape_table = table(
        head, rows, caption="Matrix products by shape", note=note, first=_IN_TERMINAL, left=(0, 5)
    )
    return PageSection(key, title, about, tables=(shape_table,))


def _dtype(each: ProductShape) -> str:
    return "tf32" if each.is_tf32 else _known_dtype(each.dtype)


def _known_dtype(recorded: str) -> str:
    """Return the usual name of an element type; an unknown one stays as recorded."""
    from ccl_bench.catalog.dtypes import canonical

    try:
        return canonical(recorded)
    except NotMeasurable:
        return recorded


def _peak(context: Context, each: ProductShape) -> float | None:
    """Return the dense peak for a product in operations per second, if the devices of the run have one."""
    from ccl_bench.catalog import devices

    for seen in context.inspection.devices if each.on_device else ():
        try:
            return devices.device(seen.name, memory_bytes=seen.memory_bytes).peak_flops(_dtype(each))
        except NotMeasurable:
            continue
    return None


def calls(context: Context) -> PageSection:
    """Return the section of kinds of calls and of traffic between ranks."""
    key, title = "calls", "Kinds of calls"
    drill_down = context.series.drill_down
    if not drill_down.calls:
        return absent(key, title, context.why("total_communication_time"))
    about = (
        "One rank in a mean step. Waiting, transfer and unknown add up to the time. Skew is "
        "the time from the first member's arrival to the last; bandwidth is bus bandwidth; both are medians."
    )
    rows = [
        (
            each.collective,
            _known_dtype(each.dtype),
            cell(each.size_bytes, size, "unknown"),
            each.dimension,
            cell(each.size, str, "unknown"),
            cell(each.calls, amount),
            *(
                cell(time_s, duration)
                for time_s in (each.time_s, each.waiting_s, each.transfer_s, each.unknown_s, each.skew_s)
            ),
            cell(each.bus_gb_per_s, amount),
            "-" if each.bus_gb_per_s is None else "transfer" if each.is_wait_free else "whole calls",
        )
        for each in drill_down.calls
    ]
    head = (
        *("collective", "element type", "message", "dimension", "members", "calls", "time"),
        *("waiting", "transfer", "either", "skew", "bus, GB/s", "over"),
    )
    note = _left_out(drill_down, "calls", "kind")
    tables = [
        table(head, rows, caption="Calls by kind", note=note, first=_IN_TERMINAL, left=(0, 1, 3, 12)),
    ]
    if drill_down.pairs:
        pairs = [
            (str(each.source), str(each.target), f"{each.calls:,}", cell(each.bytes, size))
            for each in drill_down.pairs
        ]
        tables.append(
            table(
                ("from rank", "to rank", "calls", "bytes"),
                pairs,
                caption="Who sends to whom, in the whole recording",
                note=_left_out(drill_down, "pairs", "pair").replace("less time", "fewer bytes"),
                first=_IN_TERMINAL,
                left=(0, 1),
            )
        )
    return PageSection(
        key,
        title,
        about,
        charts=tuple(_pair_map(drill_down.pairs)),
        tables=tuple(tables),
        notes=() if drill_down.pairs else (_NO_PAIRS,),
    )


_NO_PAIRS = (
    "No trace shows who sends to whom: messages and all-to-alls name partners, other collectives do not."
)


def _pair_map(pairs: Iterable[PairTraffic]) -> Iterator[PageChart]:
    sent = {(each.source, each.target): each.bytes for each in pairs}
    ranks = sorted({rank for pair in sent for rank in pair})
    if not sent or len(ranks) > _MOST_DRAWN or len(ranks) < 3:
        return
    names = list(map(str, ranks))
    values = [[sent.get((source, target)) for target in ranks] for source in ranks]
    per, unit = size_unit(sent.values())
    drawn = [[None if value is None else value * per for value in row] for row in values]
    spec = heat_map(names, names, drawn, of=("from rank", "to rank", f"sent, {unit}"))
    (source, target), most = max(sent.items(), key=lambda item: item[1])
    summary = f"Rank {source} sends most, to rank {target}: {size(most)}."
    cells = [
        (name, *(cell(value, size, "") for value in row)) for name, row in zip(names, values, strict=True)
    ]
    data = table(("from rank", *(f"to rank {name}" for name in names)), cells)
    yield PageChart("pairs", "Bytes that each rank sends to each other", spec, summary, data)
