"""How fast collectives moved data, beside what the link could do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.errors import NotMeasurable
from ccl_bench.report.charts.points import spread_over_size
from ccl_bench.report.numbers import GIGA, amount, percent, size
from ccl_bench.report.parts import Chart, Quantity, Section, Term
from ccl_bench.report.sections.seen import absent, table
from ccl_bench.report.traffic import BANDWIDTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.report.parts import Table
    from ccl_bench.report.sections.seen import Seen
    from ccl_bench.result.observation import MessageSize

KEY, TITLE = "bandwidth", "Bus bandwidth"

_BITS = 8
_FREE_OF_WAITING = {"wait-free", "shorter side"}


def bandwidth(looked: Seen) -> Section:
    """Return the section."""
    sizes = looked.series.bus_bandwidth
    if not sizes:
        return absent(KEY, TITLE, looked.why(*BANDWIDTHS.values()))
    peaks, sources = _peaks(looked)
    return Section(
        KEY,
        TITLE,
        "Bus bandwidth as nccl-tests defines it, which does not depend on the number of ranks and compares "
        "with the link. Small messages are bound by latency.",
        charts=(_chart(sizes, peaks),),
        tables=(_table(looked),),
        notes=tuple(sources),
    )


def _peaks(looked: Seen) -> tuple[list[tuple[str, float]], list[str]]:
    """Return the links' peaks in GB/s, one direction, with a sentence on where each is from."""
    facts = looked.found.facts
    found, told = [], []
    for name, title in (("scale_up_gbps", "scale-up link"), ("scale_out_gbps", "scale-out network")):
        fact = facts.get(name)
        if fact is not None and isinstance(fact.value, int | float):
            peak = fact.value / _BITS
            found.append((f"{title} {amount(peak)} GB/s", peak))
            told.append(f"Peak of the {title}: {amount(peak)} GB/s in one direction, from {fact.source}.")
    if "scale_up_gbps" not in facts and (link := _link_in_catalog(looked)):
        peak, device = link
        found.append((f"scale-up link {amount(peak)} GB/s", peak))
        told.append(
            f"Peak of the scale-up link: {amount(peak)} GB/s in one direction, of {device} in the catalog."
        )
    return found, told or ["No source states the peak of a link."]


def _link_in_catalog(looked: Seen) -> tuple[float, str] | None:
    from ccl_bench.catalog import devices

    for seen in looked.found.devices:
        try:
            device = devices.device(seen.name, memory_bytes=seen.memory_bytes)
        except NotMeasurable:
            continue
        if device.link_bytes_per_s_per_direction:
            return device.link_bytes_per_s_per_direction / GIGA, device.name
    return None


def _chart(sizes: Sequence[MessageSize], peaks: Sequence[tuple[str, float]]) -> Chart:
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
    note = "Dots are medians of the calls of one size, strokes leave out a tenth of them at each end."
    if any(entry.min_bytes != entry.max_bytes for entry in sizes):
        note += " Sizes between two powers of two count as one."
    if any(entry.basis == "raw" for entry in sizes):
        note += " Raw times are of calls that no other member recorded: they include waiting."
    rows = [_row(entry) for entry in sizes]
    head = ("collective", "message", "calls", "10 % below", "median", "10 % above", "time is")
    units = table(head, rows, caption="Bus bandwidth in GB/s", left=(0, 6))
    return Chart("bus-bandwidth", "Bus bandwidth against message size", spec, summary, units, note)


def _kind(entry: MessageSize) -> str:
    """Return the name under which calls are compared; times with waiting in them stand apart."""
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


def _table(looked: Seen) -> Table:
    rows = []
    for collective, metric in BANDWIDTHS.items():
        result = looked.valued(metric)
        if result is None or result.value is None:
            continue
        details = result.details
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
                details.get("reach", "unknown"),
            )
        )
    head = ("collective", "bus", "algorithm", "of the link", "calls", "bytes", "time is", "reach")
    return table(head, rows, caption="All calls together", left=(0, 6, 7))
