"""Sections on communication: bytes and time by collective and dimension, and bus bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.text import counted
from ccl_bench.base.units import GIGA
from ccl_bench.report.charts.bars import bars, stacked
from ccl_bench.report.charts.lines import spread_over_size
from ccl_bench.report.context import absent, cell, table, tile
from ccl_bench.report.formatting import amount, duration, percent, size, size_unit, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity, Term
from ccl_bench.report.theme import COMMUNICATION_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable
    from ccl_bench.result.details import (
        BandwidthDetails,
        CallCountDetails,
        CollectiveBytesDetails,
        CommunicationTimeDetails,
        DimensionTraffic,
        EfficiencyDetails,
        TrafficDetails,
    )
    from ccl_bench.result.report_data import MessageSize, ReferenceLine

KEY, TITLE = "communication", "Communication"


def communication(context: Context) -> PageSection:
    """Return the section."""
    traffic = context.valued("traffic_distribution_16")
    times = context.valued("total_communication_time")
    if traffic is None and times is None:
        return absent(KEY, TITLE, context.why("traffic_distribution_16", "total_communication_time"))
    details = cast("CollectiveBytesDetails", traffic.details) if traffic else None
    bytes_of = {n: value * GIGA for n, value in details["per_collective_gb"].items()} if details else {}
    counted_calls = context.valued("coll_call_num")
    counts = cast("CallCountDetails", counted_calls.details) if counted_calls else None
    calls = details["per_collective_calls"] if details else counts["per_collective"] if counts else {}
    timed = cast("CommunicationTimeDetails", times.details) if times else None
    unions = timed["per_collective_s"] if timed else {}
    parts = _row_parts(timed.get("per_collective_parts_s", {}) if timed else {})
    distribution = context.valued("traffic_distribution")
    dimensions = cast("TrafficDetails", distribution.details)["per_dimension"] if distribution else {}
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
            {
                n: moved
                for n, row in dimensions.items()
                if (moved := row["bytes_per_gpu_and_step"]) is not None
            },
        ),
    ]
    silent = details["unattributed_calls_count"] if details else 0
    note = f"{counted(silent, 'call')} of unknown size in all." if silent else ""
    tables = [_by_collective(bytes_of, calls, unions, parts, note)]
    tables += [_by_dimension(dimensions, of_dimensions)] if dimensions else []
    times_of_parts = timed.get("parts_s", {}) if timed else {}
    known_parts = _part_names(_row_parts({"": times_of_parts}))
    return PageSection(
        KEY,
        TITLE,
        "Communication of one GPU in a mean step. Time with at least one running call, hidden or not: "
        f"it {_ABOUT_PARTS if parts else 'includes waiting for other ranks'}. Bytes are message sizes as "
        "nccl-tests counts them.",
        (
            *tile(
                context,
                "total_communication_time",
                "Time in communication",
                note=", ".join(f"{duration(times_of_parts[part])} {part}" for part in known_parts),
            ),
            *tile(context, "traffic_distribution_16", "Bytes of one GPU"),
            *tile(
                context,
                "coll_call_num",
                "Calls of rank 0" if counts and counts["rank"] == "0" else "Calls",
                formatter=amount,
            ),
        ),
        tuple(charts),
        tuple(tables),
    )


_ABOUT_PARTS = "waits for late ranks first, then moves data, which is transfer"

Parts = dict[str, dict[str, float]]
"""Name → part → time, s."""


def _row_parts(parts: Parts) -> Parts:
    """Return the parts of each row, if any waiting or transfer is known."""
    is_known = any(each.get("waiting") or each.get("transfer") for each in parts.values())
    return {name: each for name, each in parts.items() if each} if is_known else {}


def _part_names(parts: Parts) -> list[str]:
    """Return the parts to show, none where nothing is divided; "unknown" only if it is not empty."""
    if not parts:
        return []
    has_unknown = any(each["unknown"] for each in parts.values())
    return [part for part in COMMUNICATION_PARTS if part != "unknown" or has_unknown]


def _times(by: str, values: dict[str, float], parts: Parts) -> list[PageChart]:
    """Return a chart of times, divided if the parts are known, if there are several to compare."""
    if not parts or parts.keys() != values.keys():
        return _bars(by, "time", values)
    per, unit = time_unit(values.values())
    ordered = sorted(values, key=lambda name: -values[name])
    colours = [(part, COMMUNICATION_PARTS[part]) for part in _part_names(parts)]
    rows = [(name, {part: parts[name][part] * per for part, _ in colours}) for name in ordered]
    spec = stacked(rows, colours, title=f"time in a mean step, {unit}", of=by)
    cells = [(name, cell(values[name], duration), *_part_cells(parts, name)) for name in ordered]
    summary = "; ".join(
        f"{name} {duration(values[name])}, of which {duration(parts[name]['waiting'])} waiting"
        for name in ordered[:_MENTIONED]
    )
    head = (by, "time", *_part_names(parts))
    return [PageChart(f"time-by-{by}", f"Time by {_WORDS[by]}", spec, f"{summary}.", table(head, cells))]


_MENTIONED = 3
"""Number of rows of a chart that its summary names."""

_WORDS = {"collective": "collective", "dimension": "parallelism dimension"}


def _part_cells(parts: Parts, name: str) -> list[Cell]:
    """Return the cells of a row that divide its time."""
    return [cell(parts[name][part] if name in parts else None, duration) for part in _part_names(parts)]


def _bars(by: str, what: str, values: dict[str, float]) -> list[PageChart]:
    """Return a chart if there are several values to compare."""
    if len(values) < 2:
        return []
    is_time = what == "time"
    per, unit = (time_unit if is_time else size_unit)(values.values())
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
    rows = [(name, cell(values[name], read)) for name in ordered]
    heading = f"{what.capitalize()} by {_WORDS[by]}"
    return [PageChart(f"{what}-by-{by}", heading, spec, summary, table((by, what), rows))]


def _by_collective(
    bytes_of: dict[str, float], calls: dict[str, float], unions: dict[str, float], parts: Parts, note: str
) -> PageTable:
    total = sum(bytes_of.values())
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            cell(calls.get(name), amount),
            cell(bytes_of.get(name), size),
            percent(100 * bytes_of[name] / total) if total and name in bytes_of else "-",
            cell(unions.get(name), duration),
            *_part_cells(parts, name),
        )
        for name in dict.fromkeys((*bytes_of, *sorted({**unions, **calls})))
    ]
    head = ("collective", "calls", "bytes", "share of bytes", "time", *_part_names(parts))
    return table(head, rows, caption="By collective", note=note)


def _by_dimension(dimensions: dict[str, DimensionTraffic], parts: Parts) -> PageTable:
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            cell(row["calls_per_gpu_and_step"], amount),
            cell(row["bytes_per_gpu_and_step"], size, "unknown"),
            "unknown" if (share := row["share_pct"]) is None else percent(share),
            cell(row.get("time_s_per_gpu_and_step"), duration, "unknown"),
            *_part_cells(parts, name),
        )
        for name, row in dimensions.items()
    ]
    head = ("dimension", "calls", "bytes", "share of bytes", "time", *_part_names(parts))
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
    return PageSection(
        BANDWIDTH_KEY,
        BANDWIDTH_TITLE,
        "Bus bandwidth as nccl-tests defines it: independent of the number of ranks, comparable with the "
        "link. Small messages are bound by latency.",
        charts=(_chart(sizes, peaks, context.series.references),),
        tables=(_all_calls(context),),
        notes=(*(sources or ["No source states the peak of a link."]), *_reference_note(context)),
    )


def _reference_note(context: Context) -> Iterator[str]:
    """Yield what the reference is."""
    measured = list(dict.fromkeys(line.reaches for line in context.series.references))
    if measured:
        yield f"The reference is what {' and '.join(measured)}, in AIConfigurator's measurements in one node."


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


def _chart(
    sizes: Sequence[MessageSize],
    peaks: Sequence[tuple[str, float]],
    references: Sequence[ReferenceLine],
) -> PageChart:
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
    lines = [
        {"kind": f"{line.collective}, {line.dimension}", "bytes": at, "rate": rate, "reaches": line.reaches}
        for line in references
        for at, rate in zip(line.size_bytes, line.gb_per_s, strict=True)
    ]
    spec = spread_over_size(points, x="message size", y="bus bandwidth, GB/s", peaks=peaks, references=lines)
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
    if references:
        note += " Dotted lines are the reference."
    has_tests = any(entry.nccl_tests_gb_per_s for entry in sizes)
    has_references = any(entry.reference_gb_per_s for entry in sizes)
    rows: list[list[Cell]] = []
    for entry in sizes:
        rates = (entry.p10_gb_per_s, entry.p50_gb_per_s, entry.p90_gb_per_s)
        row = [_kind(entry), _size(entry), f"{entry.calls:,}", *(cell(rate, amount) for rate in rates)]
        rows.append([*row, entry.basis])
        compared = ((has_tests, entry.nccl_tests_gb_per_s), (has_references, entry.reference_gb_per_s))
        for is_shown, reached in compared:
            if is_shown:
                share = 100 * entry.p50_gb_per_s / reached if reached else None
                rows[-1] += [cell(reached or None, amount), cell(share, percent)]
    head = ("collective", "message", "calls", "10 % below", "median", "10 % above", "time is")
    tests = ("nccl-tests", "median over it") if has_tests else ()
    reference = ("reference", "efficiency") if has_references else ()
    data = table((*head, *tests, *reference), rows, caption="Bus bandwidth in GB/s", left=(0, 6))
    return PageChart("bus-bandwidth", "Bus bandwidth against message size", spec, summary, data, note)


def _kind(entry: MessageSize) -> str:
    """Return the name under which calls are compared; times that include waiting are separate."""
    doubt = "" if entry.basis in _FREE_OF_WAITING else f", {entry.basis}"
    return f"{entry.collective}, {entry.dimension}{doubt}"


def _size(entry: MessageSize) -> str:
    low, high = size(entry.min_bytes), size(entry.max_bytes)
    return high if entry.min_bytes == entry.max_bytes else f"{low} to {high}"


def _efficiencies(context: Context) -> dict[str, float]:
    """Return the efficiency of the calls of each collective that have a reference, %."""
    efficiency = context.valued("collective_efficiency")
    times: dict[str, tuple[float, float]] = {}
    for row in cast("EfficiencyDetails", efficiency.details)["calls"] if efficiency else ():
        reference, recorded = times.get(row["collective"], (0.0, 0.0))
        count = row["calls_count"]
        times[row["collective"]] = (
            reference + count * row["reference_s"],
            recorded + count * row["recorded_s"],
        )
    return {name: 100 * reference / recorded for name, (reference, recorded) in times.items()}


def _all_calls(context: Context) -> PageTable:
    rows = []
    results = {name: context.valued(metric) for name, metric in BANDWIDTHS.items()}
    parts = _row_parts({n: r.details.get("time_parts_s", {}) for n, r in results.items() if r})
    has_tests = any(r.details.get("nccl_tests_efficiency_ratio") for r in results.values() if r)
    efficiencies = _efficiencies(context)
    for collective, metric in BANDWIDTHS.items():
        result = context.valued(metric)
        if result is None or result.value is None:
            continue
        details = cast("BandwidthDetails", result.details)
        share = details.get("share_of_link_pct")
        algorithm = details["algorithm_bandwidth_gb_per_s"]
        of_tests = details.get("nccl_tests_efficiency_ratio")
        rows.append(
            (
                Term(metric, collective),
                Quantity(result.value, f"{amount(result.value)} GB/s"),
                Quantity(algorithm, f"{amount(algorithm)} GB/s"),
                cell(share, percent, "unknown"),
                f"{details['calls_count']:,}",
                cell(details["total_bytes"], size),
                details["basis"],
                details["reach"],
                *([cell(of_tests and 100 * of_tests, percent, "unknown")] if has_tests else ()),
                *([cell(efficiencies.get(collective), percent, "unknown")] if efficiencies else ()),
                *_part_cells(parts, collective),
            )
        )
    head = ("collective", "bus", "algorithm", "of the link", "calls", "bytes", "time is", "reach")
    shares = [*(["of nccl-tests"] if has_tests else []), *(["efficiency"] if efficiencies else [])]
    divided = [*shares, *_part_names(parts)]
    note = "Waiting, transfer and unknown are times of one GPU in a mean step." if parts else ""
    return table((*head, *divided), rows, caption="All calls together", note=note, left=(0, 6, 7))
