"""Sections on communication: bytes and time by collective and dimension, and bus bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.text import counted
from ccl_bench.base.units import GIGA
from ccl_bench.report.charts.bars import bars, stacked
from ccl_bench.report.charts.lines import spread_over_size
from ccl_bench.report.context import absent, table, tile
from ccl_bench.report.formatting import amount, duration, percent, size, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity, Term
from ccl_bench.report.theme import COMMUNICATION_PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable
    from ccl_bench.result.details import (
        BandwidthDetails,
        CallCountDetails,
        CollectiveBytesDetails,
        CommunicationTimeDetails,
        DimensionTraffic,
        TrafficDetails,
    )
    from ccl_bench.result.report_data import MessageSize

KEY, TITLE = "communication", "Communication"

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def communication(context: Context) -> PageSection:
    """Return the section."""
    traffic = context.valued("traffic_distribution_16")
    times = context.valued("total_communication_time")
    if traffic is None and times is None:
        return absent(KEY, TITLE, context.why("traffic_distribution_16", "total_communication_time"))
    moved = cast("CollectiveBytesDetails", traffic.details) if traffic else None
    bytes_of = {name: value * GIGA for name, value in moved["per_collective_gb"].items()} if moved else {}
    calls = moved["per_collective_calls"] if moved else _calls(context)
    timed = cast("CommunicationTimeDetails", times.details) if times else None
    unions = timed["per_collective_s"] if timed else {}
    parts = _row_parts(timed.get("per_collective_parts_s", {}) if timed else {})
    dimensions = _dimensions(context)
    of_dimensions = _row_parts({n: row.get("parts_s_per_gpu_and_step", {}) for n, row in dimensions.items()})
    charts = [
        *_times("collective", {name: unions[name] for name in sorted(unions)}, parts),
        *_bars("collective", "bytes", bytes_of),
        *_times(
            "dimension",
            {n: seconds for n, row in dimensions.items() if (seconds := row.get("time_s_per_gpu_and_step"))},
            of_dimensions,
        ),
        *_bars(
            "dimension",
            "bytes",
            {n: size for n, row in dimensions.items() if (size := _moved(row)) is not None},
        ),
    ]
    tables = [_by_collective(bytes_of, calls, unions, parts, _silent(moved))]
    tables += [_by_dimension(dimensions, of_dimensions)] if dimensions else []
    return PageSection(
        KEY,
        TITLE,
        "Communication of one GPU in a mean step. Time with at least one running call, hidden or not: "
        f"it {_ABOUT_PARTS if parts else 'includes waiting for other ranks'}. Bytes are message sizes as "
        "nccl-tests counts them.",
        (
            *tile(context, "total_communication_time", "Time in communication", note=_divided(timed)),
            *tile(context, "traffic_distribution_16", "Bytes of one GPU"),
            *tile(
                context,
                "coll_call_num",
                "Calls of rank 0" if _is_first(context) else "Calls",
                formatter=amount,
            ),
        ),
        tuple(charts),
        tuple(tables),
    )


def _calls(context: Context) -> dict[str, float]:
    result = context.valued("coll_call_num")
    return cast("CallCountDetails", result.details)["per_collective"] if result else {}


def _is_first(context: Context) -> bool:
    result = context.valued("coll_call_num")
    return bool(result and cast("CallCountDetails", result.details)["rank"] == "0")


def _silent(details: CollectiveBytesDetails | None) -> str:
    count = details["unattributed_calls_count"] if details else 0
    return f"{counted(count, 'call')} of unknown size in all." if count else ""


def _dimensions(context: Context) -> dict[str, DimensionTraffic]:
    result = context.valued("traffic_distribution")
    return cast("TrafficDetails", result.details)["per_dimension"] if result else {}


def _moved(row: DimensionTraffic) -> float | None:
    """Return the bytes of a dimension, or None if none of its calls has a size."""
    moved = row["bytes_per_gpu_and_step"]
    return None if moved is None else float(moved)


_ABOUT_PARTS = "waits for late ranks first, then moves data, which is transfer"

Parts = dict[str, dict[str, float]]
"""Name → part → time, s."""


def _row_parts(parts: Parts) -> Parts:
    """Return the parts of each row, if any waiting or transfer is known."""
    is_known = any(each.get("waiting") or each.get("transfer") for each in parts.values())
    return {name: each for name, each in parts.items() if each} if is_known else {}


def _part_names(parts: Parts) -> list[str]:
    """Return the parts to show; "unknown" only if it is not empty."""
    has_unknown = any(each["unknown"] for each in parts.values())
    return [part for part in COMMUNICATION_PARTS if part != "unknown" or has_unknown]


def _divided(details: CommunicationTimeDetails | None) -> str:
    """Return the parts of communication time in words, as far as known."""
    parts = details.get("parts_s", {}) if details else {}
    known_parts = _row_parts({"": parts})
    return (
        ", ".join(f"{duration(parts[part])} {part}" for part in _part_names(known_parts))
        if known_parts
        else ""
    )


def _times(by: str, values: dict[str, float], parts: Parts) -> list[PageChart]:
    """Return a chart of times, divided if the parts are known, if there are several to compare."""
    if not parts or parts.keys() != values.keys():
        return _bars(by, "time", values)
    per, unit = time_unit(values.values())
    ordered = sorted(values, key=lambda name: -values[name])
    colours = [(part, COMMUNICATION_PARTS[part]) for part in _part_names(parts)]
    rows = [(name, {part: parts[name][part] * per for part, _ in colours}) for name in ordered]
    spec = stacked(rows, colours, title=f"time in a mean step, {unit}", of=by)
    cells = [(name, _time(values[name]), *_part_cells(parts, name)) for name in ordered]
    summary = "; ".join(
        f"{name} {duration(values[name])}, of which {duration(parts[name]['waiting'])} waiting"
        for name in ordered[:_MENTIONED]
    )
    head = (by, "time", *_part_names(parts))
    return [PageChart(f"time-by-{by}", f"Time by {_WORDS[by]}", spec, f"{summary}.", table(head, cells))]


_MENTIONED = 3
"""Number of rows of a chart that its summary names."""

_WORDS = {"collective": "collective", "dimension": "parallelism dimension"}


def _time(value: float) -> Quantity:
    return Quantity(value, duration(value))


def _part_cells(parts: Parts, name: str) -> list[Cell]:
    """Return the cells of a row that divide its time."""
    return [
        _time(parts[name][part]) if name in parts else "-" for part in (_part_names(parts) if parts else ())
    ]


def _bars(by: str, what: str, values: dict[str, float]) -> list[PageChart]:
    """Return a chart if there are several values to compare."""
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
    summary = f"Largest is {most} with {read(values[most])}, smallest is {least} with {read(values[least])}."
    rows = [(name, Quantity(values[name], read(values[name]))) for name in ordered]
    heading = f"{what.capitalize()} by {_WORDS[by]}"
    return [PageChart(f"{what}-by-{by}", heading, spec, summary, table((by, what), rows))]


def _size_unit(values: Mapping[str, float]) -> tuple[float, str]:
    largest = max(values.values())
    return next(((1 / scale, unit) for scale, unit in _SIZES if largest >= scale), (1.0, "B"))


def _by_collective(
    bytes_of: dict[str, float], calls: dict[str, float], unions: dict[str, float], parts: Parts, note: str
) -> PageTable:
    total = sum(bytes_of.values())
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            Quantity(calls[name], amount(calls[name])) if name in calls else "-",
            Quantity(bytes_of[name], size(bytes_of[name])) if name in bytes_of else "-",
            percent(100 * bytes_of[name] / total) if total and name in bytes_of else "-",
            _time(unions[name]) if name in unions else "-",
            *_part_cells(parts, name),
        )
        for name in dict.fromkeys((*bytes_of, *sorted({**unions, **calls})))
    ]
    head = ("collective", "calls", "bytes", "share of bytes", "time", *(_part_names(parts) if parts else ()))
    return table(head, rows, caption="By collective", note=note)


def _by_dimension(dimensions: dict[str, DimensionTraffic], parts: Parts) -> PageTable:
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            Quantity(row["calls_per_gpu_and_step"], amount(row["calls_per_gpu_and_step"])),
            "unknown" if (moved := _moved(row)) is None else Quantity(moved, size(moved)),
            "unknown" if (share := row["share_pct"]) is None else percent(share),
            _time(seconds) if (seconds := row.get("time_s_per_gpu_and_step")) is not None else "unknown",
            *_part_cells(parts, name),
        )
        for name, row in dimensions.items()
    ]
    head = ("dimension", "calls", "bytes", "share of bytes", "time", *(_part_names(parts) if parts else ()))
    return table(head, rows, caption="By parallelism dimension")


BANDWIDTHS = {
    "all_reduce": "bandwidth_utilization_allreduce",
    "all_gather": "bandwidth_utilization_allgather",
    "reduce_scatter": "bandwidth_utilization_reducescatter",
    "all_to_all": "bandwidth_utilization_alltoall",
    "send, recv": "bandwidth_utilization_p2p",
}

BANDWIDTH_KEY, BANDWIDTH_TITLE = "bandwidth", "Bus bandwidth"

_BITS = 8
_FREE_OF_WAITING = {"wait-free", "shorter side"}


def bandwidth(context: Context) -> PageSection:
    """Return the section."""
    sizes = context.series.bus_bandwidth
    if not sizes:
        return absent(BANDWIDTH_KEY, BANDWIDTH_TITLE, context.why(*BANDWIDTHS.values()))
    peaks, sources = _peaks(context)
    return PageSection(
        BANDWIDTH_KEY,
        BANDWIDTH_TITLE,
        "Bus bandwidth as nccl-tests defines it: independent of the number of ranks, comparable with the "
        "link. Small messages are bound by latency.",
        charts=(_chart(sizes, peaks),),
        tables=(_all_calls(context),),
        notes=tuple(sources),
    )


def _peaks(context: Context) -> tuple[list[tuple[str, float]], list[str]]:
    """Return the links' peaks in GB/s, one direction, with a sentence on the source of each."""
    facts = context.inspection.facts
    peaks, sources = [], []
    for name, title in (("scale_up_gbps", "scale-up link"), ("scale_out_gbps", "scale-out network")):
        fact = facts.get(name)
        if fact is not None and isinstance(fact.value, int | float):
            peak = fact.value / _BITS
            peaks.append((f"{title} {amount(peak)} GB/s", peak))
            sources.append(f"Peak of the {title}: {amount(peak)} GB/s in one direction, from {fact.source}.")
    if "scale_up_gbps" not in facts and (link := _link_in_catalog(context)):
        peak, device = link
        peaks.append((f"scale-up link {amount(peak)} GB/s", peak))
        sources.append(
            f"Peak of the scale-up link: {amount(peak)} GB/s in one direction, of {device} in the catalog."
        )
    return peaks, sources or ["No source states the peak of a link."]


def _link_in_catalog(context: Context) -> tuple[float, str] | None:
    from ccl_bench.catalog import devices

    for seen in context.inspection.devices:
        try:
            device = devices.device(seen.name, memory_bytes=seen.memory_bytes)
        except NotMeasurable:
            continue
        if device.link_bytes_per_s_per_direction:
            return device.link_bytes_per_s_per_direction / GIGA, device.name
    return None


def _chart(sizes: Sequence[MessageSize], peaks: Sequence[tuple[str, float]]) -> PageChart:
    points = [
        {
            "kind": _kind(entry),
            "bytes": entry.max_bytes,
            "size": _size(entry),
            "low": entry.p10_gb_per_s,
            "middle": entry.p50_gb_per_s,
            "high": entry.p90_gb_per_s,
            "calls": entry.calls,
        }
        for entry in sizes
    ]
    spec = spread_over_size(points, x="message size", y="bus bandwidth, GB/s", peaks=peaks)
    best = max(sizes, key=lambda entry: entry.p50_gb_per_s)
    summary = (
        f"The highest median is {amount(best.p50_gb_per_s)} GB/s, "
        f"of {_kind(best)} with messages of {_size(best)}."
    )
    note = "Dots are medians of the calls of one size, bars span the 10th to 90th percentile."
    if any(entry.min_bytes != entry.max_bytes for entry in sizes):
        note += " Sizes between two powers of two are one group."
    if any(entry.basis == "raw" for entry in sizes):
        note += " Raw times come from calls that no other member recorded; they include waiting."
    has_tests = any(entry.nccl_tests_gb_per_s for entry in sizes)
    rows = [(*_row(entry), *(_of_tests(entry) if has_tests else ())) for entry in sizes]
    head = ("collective", "message", "calls", "10 % below", "median", "10 % above", "time is")
    tests = ("nccl-tests", "median over it") if has_tests else ()
    units = table((*head, *tests), rows, caption="Bus bandwidth in GB/s", left=(0, 6))
    return PageChart("bus-bandwidth", "Bus bandwidth against message size", spec, summary, units, note)


def _kind(entry: MessageSize) -> str:
    """Return the name under which calls are compared; times that include waiting are separate."""
    doubt = "" if entry.basis in _FREE_OF_WAITING else f", {entry.basis}"
    return f"{entry.collective}, {entry.dimension}{doubt}"


def _size(entry: MessageSize) -> str:
    low, high = size(entry.min_bytes), size(entry.max_bytes)
    return high if entry.min_bytes == entry.max_bytes else f"{low} to {high}"


def _row(entry: MessageSize) -> tuple[str | Quantity, ...]:
    rates = (entry.p10_gb_per_s, entry.p50_gb_per_s, entry.p90_gb_per_s)
    return (
        _kind(entry),
        _size(entry),
        f"{entry.calls:,}",
        *(Quantity(rate, amount(rate)) for rate in rates),
        entry.basis,
    )


def _of_tests(entry: MessageSize) -> tuple[Cell, ...]:
    """Return the bandwidth of nccl-tests at the size, and the median relative to it."""
    reached = entry.nccl_tests_gb_per_s
    if not reached:
        return "-", "-"
    share = 100 * entry.p50_gb_per_s / reached
    return Quantity(reached, amount(reached)), Quantity(share, percent(share))


def _all_calls(context: Context) -> PageTable:
    rows = []
    results = {name: context.valued(metric) for name, metric in BANDWIDTHS.items()}
    parts = _row_parts({n: r.details.get("time_parts_s", {}) for n, r in results.items() if r})
    has_tests = any(r.details.get("nccl_tests_efficiency_ratio") for r in results.values() if r)
    for collective, metric in BANDWIDTHS.items():
        result = context.valued(metric)
        if result is None or result.value is None:
            continue
        details = cast("BandwidthDetails", result.details)
        share = details.get("share_of_link_pct")
        algorithm = details["algorithm_bandwidth_gb_per_s"]
        rows.append(
            (
                Term(metric, collective),
                Quantity(result.value, f"{amount(result.value)} GB/s"),
                Quantity(algorithm, f"{amount(algorithm)} GB/s"),
                "unknown" if share is None else Quantity(share, percent(share)),
                f"{details['calls_count']:,}",
                Quantity(details["total_bytes"], size(details["total_bytes"])),
                details["basis"],
                details["reach"],
                *(_efficiency(details) if has_tests else ()),
                *_part_cells(parts, collective),
            )
        )
    head = ("collective", "bus", "algorithm", "of the link", "calls", "bytes", "time is", "reach")
    divided = [*(["of nccl-tests"] if has_tests else []), *(_part_names(parts) if parts else [])]
    note = "Waiting, transfer and unknown are times of one GPU in a mean step." if parts else ""
    return table((*head, *divided), rows, caption="All calls together", note=note, left=(0, 6, 7))


def _efficiency(details: BandwidthDetails) -> tuple[Cell]:
    ratio = details.get("nccl_tests_efficiency_ratio")
    return ("unknown" if ratio is None else Quantity(100 * ratio, percent(100 * ratio)),)
