"""Kernel time: by type, and the longest kernels by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.report.charts.bars import bars
from ccl_bench.report.context import absent, table, tile
from ccl_bench.report.formatting import amount, duration, percent, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity
from ccl_bench.report.sections.drill_down import kernel_table

if TYPE_CHECKING:
    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import PageTable
    from ccl_bench.result import Result
    from ccl_bench.result.details import KernelSharesDetails, KernelTimeDetails

KEY, TITLE = "kernels", "Kernels"


def kernels(context: Context) -> PageSection:
    """Return the section."""
    total = context.valued("total_kernel_time")
    if total is None:
        return absent(KEY, TITLE, context.why("total_kernel_time"))
    top = context.valued("dominant_kernel_concentration")
    return PageSection(
        KEY,
        TITLE,
        "Sums of kernel durations in a mean step, mean over ranks; concurrent kernels are each counted.",
        (
            *tile(context, "total_kernel_time", "Time with a kernel", note=_launched(total)),
            *tile(context, "dominant_kernel_concentration", "Share of the longest kernel"),
            *tile(context, "sm", "Multiprocessors in use"),
            *tile(context, "launch_overhead", "Launching, host time"),
        ),
        (_types(total),),
        (kernel_table(context.series.drill_down),)
        if context.series.drill_down.kernels
        else (_top(top),)
        if top
        else (),
    )


def _launched(total: Result) -> str:
    count = cast("KernelTimeDetails", total.details)["kernels_per_step"]
    return f"{amount(count)} kernels in a step" if count else ""


def _types(total: Result) -> PageChart:
    details = cast("KernelTimeDetails", total.details)
    times, shares = details["per_type_s"], details["per_type_pct"]
    per, unit = time_unit(times.values())
    ordered = sorted(times, key=lambda name: -times[name])
    spec = bars(
        [(name, times[name] * per) for name in ordered],
        title=f"time in a mean step, {unit}",
        unit=unit,
        colour="var(--compute)",
    )
    first = ordered[0]
    of_all = f"{duration(times[first])} in a mean step, {percent(shares[first])} of all"
    summary = f"Most kernel time is {first}: {of_all}."
    rows = [(name, Quantity(times[name], duration(times[name])), percent(shares[name])) for name in ordered]
    return PageChart(
        "kernel-types", "Kernel time by type", spec, summary, table(("type", "time", "share"), rows)
    )


def _top(top: Result) -> PageTable:
    rows = [
        (entry["name"], entry["type"], Quantity(entry["pct"], percent(entry["pct"])), f"{entry['count']:,}")
        for entry in cast("KernelSharesDetails", top.details)["first"]
    ]
    head = ("kernel", "type", "share of kernel time", "calls")
    return table(
        head, rows, caption="The kernels that take most time, all ranks and steps", left=(0, 1), wide=(0,)
    )
