"""The section on device memory: over time, at its peak, and the part that no tensor uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.units import GIGA
from ccl_bench.report.charts.bars import bars
from ccl_bench.report.charts.flames import flame, stacked_areas
from ccl_bench.report.charts.lines import memory_curve
from ccl_bench.report.context import absent, table, tile
from ccl_bench.report.formatting import amount, duration, percent, size
from ccl_bench.report.page_model import PageChart, PageSection, Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable
    from ccl_bench.result.details import FragmentationDetails, PeakMemoryDetails
    from ccl_bench.result.drill_down import CallSite
    from ccl_bench.result.report_data import MemoryCurve

KEY, TITLE = "memory", "Device memory"

_MOMENTS = {"snapshot": "at the snapshot", "peak": "when most was allocated"}


def memory(context: Context) -> PageSection:
    """Return the section."""
    peak, unused = context.valued("peak_memory_allocated"), context.valued("memory_fragmentation")
    if peak is None and unused is None:
        return absent(KEY, TITLE, context.why("peak_memory_allocated", "memory_fragmentation"))
    peak_details: PeakMemoryDetails = cast("PeakMemoryDetails", peak.details) if peak else {}
    left = cast("FragmentationDetails", unused.details) if unused else None
    return PageSection(
        KEY,
        TITLE,
        "Tensors hold allocated memory; the allocator took reserved memory from the device. "
        "Fragmentation has no single measure; the table lists the common ones.",
        (
            *tile(context, "peak_memory_allocated", "Peak allocated", note=_where(peak_details)),
            *tile(
                context,
                "memory_fragmentation",
                "Reserved and in no tensor",
                formatter=lambda value: percent(100 * value),
                note=f"at the {left['basis']}" if left else "",
            ),
        ),
        (*_curves(context), *_categories(context), *_peaks(peak_details), *_call_sites(context)),
        (
            *_layouts(left),
            *_holders(peak_details),
        ),
    )


def _where(details: PeakMemoryDetails) -> str:
    device = details.get("highest_device", "")
    return f"highest on {'rank ' if device[:1].isdigit() else ''}{device}" if device else ""


def _curves(context: Context) -> Iterator[PageChart]:
    curves = context.series.memory
    for place, curve in enumerate(curves):
        note = f"Each point shows the extremes of up to {curve.events_each:,} states of the allocator. "
        if place == 0 and context.series.memory_devices > len(curves):
            of_all = f"{len(curves)} of {context.series.memory_devices:,} devices"
            note += f"The charts show the {of_all} with the highest peaks."
        yield _curve(curve, f"memory-{place}", note if curve.events_each > 1 else "")


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
        (Quantity(site.bytes, size(site.bytes)), amount(site.blocks), " › ".join(_stack(site)))
        for site in at_peak.sites
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
    cells = [(name, Quantity(peak, size(peak))) for name, peak in peaks.items()]
    data = table(("category", "most"), cells)
    yield PageChart("memory-categories", "Allocated memory by purpose", spec, summary, data)


def _curve(curve: MemoryCurve, key: str, note: str) -> PageChart:
    x = "time since the first event, s" if curve.is_timed else "events of the allocator"
    spec = memory_curve(curve, x)
    peak = max(curve.highest_allocated_bytes)
    at = curve.at[curve.highest_allocated_bytes.index(peak)]
    when = f"after {duration(at)}" if curve.is_timed else f"at event {at:,.0f}"
    reserved = size(max(curve.highest_reserved_bytes))
    summary = f"Allocated memory peaks at {size(peak)} {when}; at most {reserved} are reserved."
    rows: list[tuple[Cell, ...]] = [
        (
            duration(at) if curve.is_timed else f"{at:,.0f}",
            *(Quantity(value, size(value)) for value in values),
        )
        for at, *values in zip(
            curve.at,
            curve.lowest_allocated_bytes,
            curve.highest_allocated_bytes,
            curve.highest_reserved_bytes,
            strict=True,
        )
    ]
    head = ("time" if curve.is_timed else "event", "least allocated", "most allocated", "most reserved")
    return PageChart(
        key, f"Memory of rank {curve.device}", spec, summary, table(head, rows, left=()), note.strip()
    )


def _peaks(details: PeakMemoryDetails) -> list[PageChart]:
    peaks = details.get("per_device_peak_allocated_bytes", {})
    if len(peaks) < 2:
        return []
    rows = [(name, value / GIGA) for name, value in peaks.items()]
    spec = bars(rows, title="peak allocated, GB", unit="GB", colour="var(--memory)")
    highest, lowest = (pick(peaks, key=lambda name: peaks[name]) for pick in (max, min))
    summary = f"Peaks range from {size(peaks[lowest])} on {lowest} to {size(peaks[highest])} on {highest}."
    cells = [(name, Quantity(value, size(value))) for name, value in peaks.items()]
    return [
        PageChart(
            "memory-peaks", "Peak of each device", spec, summary, table(("rank", "peak allocated"), cells)
        )
    ]


def _layouts(details: FragmentationDetails | None) -> Iterator[PageTable]:
    layouts = details.get("snapshots", []) if details else []
    if not layouts:
        return
    measures = ("unused_ratio", "inactive_split_ratio", "scattered_ratio")
    rows = [
        (
            f"rank {entry.get('rank', 'unknown')}, {_MOMENTS.get(entry['moment'], entry['moment'])}",
            *(Quantity(entry[m], percent(100 * entry[m])) if m in entry else "-" for m in measures),
        )
        for entry in layouts
    ]
    head = ("where and when", "reserved and in no tensor", "in split blocks", "free, but not in one piece")
    yield table(head, rows, caption="Fragmentation")


def _holders(details: PeakMemoryDetails) -> Iterator[PageTable]:
    holders = details.get("holders", [])
    if not holders:
        return
    rows = [
        (
            Quantity(entry["bytes"], size(entry["bytes"])),
            amount(entry["blocks_count"]),
            " < ".join(entry["frames"])
            or ("before the history began" if entry["is_before_history"] else "-"),
        )
        for entry in holders
    ]
    yield table(
        ("bytes", "blocks", "allocated in"), rows, caption="What holds the peak", left=(2,), wide=(2,)
    )
