"""The section on device memory: over time, at its peak, and the part that no tensor uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.units import GIGA
from ccl_bench.report.charts.bars import bars
from ccl_bench.report.charts.flames import flame, stacked_areas
from ccl_bench.report.charts.lines import memory_curve
from ccl_bench.report.context import absent, cell, table, tile
from ccl_bench.report.formatting import amount, duration, percent, size
from ccl_bench.report.page_model import PageChart, PageSection, Quantity
from ccl_bench.report.sections.headline import highest_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.result.details import FragmentationDetails, PeakMemoryDetails
    from ccl_bench.result.drill_down import CallSite

KEY, TITLE = "memory", "Device memory"

_MOMENTS = {"snapshot": "at the snapshot", "peak": "when most was allocated"}


def memory(context: Context) -> PageSection:
    """Return the section."""
    peak, unused = context.valued("peak_memory_allocated"), context.valued("memory_fragmentation")
    if peak is None and unused is None:
        return absent(KEY, TITLE, context.why("peak_memory_allocated", "memory_fragmentation"))
    peak_details: PeakMemoryDetails = cast("PeakMemoryDetails", peak.details) if peak else {}
    left = cast("FragmentationDetails", unused.details) if unused else None
    tables = []
    if layouts := left.get("snapshots") if left else None:
        measures = ("unused_ratio", "inactive_split_ratio", "scattered_ratio")
        rows = [
            (
                f"rank {entry.get('rank', 'unknown')}, {_MOMENTS.get(entry['moment'], entry['moment'])}",
                *(Quantity(entry[m], percent(100 * entry[m])) if m in entry else "-" for m in measures),
            )
            for entry in layouts
        ]
        head = (
            "where and when",
            "reserved and in no tensor",
            "in split blocks",
            "free, but not in one piece",
        )
        tables.append(table(head, rows, caption="Fragmentation"))
    if holders := peak_details.get("holders"):
        stacks = [
            (
                cell(entry["bytes"], size),
                amount(entry["blocks_count"]),
                " < ".join(entry["frames"])
                or ("before the history began" if entry["is_before_history"] else "-"),
            )
            for entry in holders
        ]
        columns = ("bytes", "blocks", "allocated in")
        tables.append(table(columns, stacks, caption="What holds the peak", left=(2,), wide=(2,)))
    return PageSection(
        KEY,
        TITLE,
        "Tensors hold allocated memory; the allocator took reserved memory from the device. "
        "Fragmentation has no single measure; the table lists the common ones.",
        (
            *tile(
                context,
                "peak_memory_allocated",
                "Peak allocated",
                note=highest_device(context, "peak_memory_allocated"),
            ),
            *tile(
                context,
                "memory_fragmentation",
                "Reserved and in no tensor",
                formatter=lambda value: percent(100 * value),
                note=f"at the {left['basis']}" if left else "",
            ),
        ),
        (*_curves(context), *_categories(context), *_peaks(peak_details), *_call_sites(context)),
        tuple(tables),
    )


def _curves(context: Context) -> Iterator[PageChart]:
    """Yield the memory of each device over time."""
    curves = context.series.memory
    for place, curve in enumerate(curves):
        note = ""
        if curve.events_each > 1:
            note = f"Each point shows the extremes of up to {curve.events_each:,} states of the allocator."
            if place == 0 and context.series.memory_devices > len(curves):
                of_all = f"{len(curves)} of {context.series.memory_devices:,} devices"
                note += f" The charts show the {of_all} with the highest peaks."
        spec = memory_curve(
            curve, "time since the first event, s" if curve.is_timed else "events of the allocator"
        )
        peak = max(curve.highest_allocated_bytes)
        at = curve.at[curve.highest_allocated_bytes.index(peak)]
        when = f"after {duration(at)}" if curve.is_timed else f"at event {at:,.0f}"
        reserved = size(max(curve.highest_reserved_bytes))
        summary = f"Allocated memory peaks at {size(peak)} {when}; at most {reserved} are reserved."
        points = zip(
            curve.at,
            curve.lowest_allocated_bytes,
            curve.highest_allocated_bytes,
            curve.highest_reserved_bytes,
            strict=True,
        )
        rows = [
            (duration(at) if curve.is_timed else f"{at:,.0f}", *(cell(value, size) for value in values))
            for at, *values in points
        ]
        head = ("time" if curve.is_timed else "event", "least allocated", "most allocated", "most reserved")
        data = table(head, rows, left=())
        yield PageChart(f"memory-{place}", f"Memory of rank {curve.device}", spec, summary, data, note)


_INSIDE_TORCH = ("_wrapped_call_impl (", "_call_impl (", "inner (", "wrapper (", "decorate_context (")
"""Prefixes of frames that only pass a call on."""


def _call_sites(context: Context) -> Iterator[PageChart]:
    """Yield the flame graph of the call stacks that hold the peak."""
    at_peak = context.series.drill_down.memory
    if at_peak is None or not any(site.frames for site in at_peak.sites):
        return
    rows = [(_stack(site), site.bytes / GIGA) for site in at_peak.sites]
    frames = {frame for stack, _ in rows for frame in stack}
    short = {frame: frame.partition(" (")[0] for frame in frames}
    spec = flame(rows, of="frame", unit="GB", shorter=short)
    largest = at_peak.sites[0]
    innermost = largest.frames[-1] if largest.frames else "memory without a stack"
    summary = (
        f"{size(at_peak.allocated_bytes)} are allocated on {at_peak.device} at the peak. "
        f"The largest call site, {innermost}, allocated {size(largest.bytes)}."
    )
    cells = [
        (cell(site.bytes, size), amount(site.blocks), " › ".join(_stack(site))) for site in at_peak.sites
    ]
    data = table(("bytes", "blocks", "call stack, the outermost first"), cells, left=(2,), wide=(2,))
    title = "What holds the peak, by call stack"
    yield PageChart("memory-sites", title, spec, summary, data, is_wide=True)


def _stack(site: CallSite) -> list[str]:
    """Return the frames of a call site, without those that only pass a call on."""
    if not site.frames:
        return ["allocated before the history" if site.is_before_history else "no stack was recorded"]
    return [frame for frame in site.frames if not frame.startswith(_INSIDE_TORCH)] or site.frames


def _categories(context: Context) -> Iterator[PageChart]:
    """Yield memory by purpose, over time."""
    curves = context.series.drill_down.categories
    if curves is None:
        return
    rows = {name: [each / GIGA for each in values] for name, values in curves.allocated_bytes.items()}
    x = "time since the first event, s" if curves.is_timed else "events of the allocator"
    spec = stacked_areas(curves.at, rows, x=x, y="allocated, GB", of="category")
    peaks = {name: max(values) for name, values in curves.allocated_bytes.items()}
    most = max(peaks, key=lambda name: peaks[name])
    summary = f"The largest part is {most}, up to {size(peaks[most])} on {curves.device}."
    cells = [(name, cell(peak, size)) for name, peak in peaks.items()]
    data = table(("category", "most"), cells)
    yield PageChart("memory-categories", "Allocated memory by purpose", spec, summary, data)


def _peaks(details: PeakMemoryDetails) -> list[PageChart]:
    peaks = details.get("per_device_peak_allocated_bytes", {})
    if len(peaks) < 2:
        return []
    rows = [(name, value / GIGA) for name, value in peaks.items()]
    spec = bars(rows, title="peak allocated, GB", unit="GB", colour="var(--memory)")
    highest, lowest = (pick(peaks, key=lambda name: peaks[name]) for pick in (max, min))
    summary = f"Peaks range from {size(peaks[lowest])} on {lowest} to {size(peaks[highest])} on {highest}."
    cells = [(name, cell(value, size)) for name, value in peaks.items()]
    return [
        PageChart(
            "memory-peaks", "Peak of each device", spec, summary, table(("rank", "peak allocated"), cells)
        )
    ]
