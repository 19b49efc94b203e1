"""Kernel time: by type, and the longest kernels by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.report.charts.bars import bars
from ccl_bench.report.context import absent, cell, table, tile
from ccl_bench.report.formatting import amount, duration, percent, time_unit
from ccl_bench.report.page_model import PageChart, PageSection
from ccl_bench.report.sections.drill_down import kernel_table

if TYPE_CHECKING:
    from ccl_bench.report.context import Context
    from ccl_bench.result.details import KernelSharesDetails, KernelTimeDetails

KEY, TITLE = "kernels", "Kernels"


def kernels(context: Context) -> PageSection:
    """Return the section."""
    total = context.valued("total_kernel_time")
    if total is None:
        return absent(KEY, TITLE, context.why("total_kernel_time"))
    details = cast("KernelTimeDetails", total.details)
    launched = (
        f"{amount(details['kernels_per_step'])} kernels in a step" if details["kernels_per_step"] else ""
    )
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
    by_type = table(
        ("type", "time", "share"),
        [(name, cell(times[name], duration), percent(shares[name])) for name in ordered],
    )
    top = context.valued("dominant_kernel_concentration")
    tables = []
    if context.series.drill_down.kernels:
        tables.append(kernel_table(context.series.drill_down))
    elif top:
        rows = [
            (entry["name"], entry["type"], cell(entry["pct"], percent), f"{entry['count']:,}")
            for entry in cast("KernelSharesDetails", top.details)["first"]
        ]
        head = ("kernel", "type", "share of kernel time", "calls")
        caption = "The kernels that take most time, all ranks and steps"
        tables.append(table(head, rows, caption=caption, left=(0, 1), wide=(0,)))
    return PageSection(
        KEY,
        TITLE,
        "Sums of kernel durations in a mean step, mean over ranks; concurrent kernels are each counted.",
        (
            *tile(context, "total_kernel_time", "Time with a kernel", note=launched),
            *tile(context, "dominant_kernel_concentration", "Share of the longest kernel"),
            *tile(context, "sm", "Multiprocessors in use"),
            *tile(context, "launch_overhead", "Launching, host time"),
        ),
        (
            PageChart(
                "kernel-types",
                "Kernel time by type",
                spec,
                f"Most kernel time is {first}: {of_all}.",
                by_type,
            ),
        ),
        tuple(tables),
    )
