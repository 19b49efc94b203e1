"""One run as a page: the same sections for HTML, Markdown and text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench import __version__, metrics
from ccl_bench.base.text import counted, devices_named
from ccl_bench.report.context import context_of
from ccl_bench.report.formatting import ranges, size, step_numbers
from ccl_bench.report.page_model import Page
from ccl_bench.report.sections.communication import bandwidth, communication
from ccl_bench.report.sections.drill_down import calls, operators, products
from ccl_bench.report.sections.headline import findings, headline
from ccl_bench.report.sections.kernels import kernels
from ccl_bench.report.sections.memory import memory
from ccl_bench.report.sections.pipeline import pipeline
from ccl_bench.report.sections.reference import definitions, reference
from ccl_bench.report.sections.serving import serving
from ccl_bench.report.sections.steps import steps, time_breakdown
from ccl_bench.report.sections.strip import strip
from ccl_bench.report.sections.sweep import sweep
from ccl_bench.report.sections.training import experts, training
from ccl_bench.report.sections.waiting import waiting
from ccl_bench.report.verdict import quality, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.result.inspection import Inspection
    from ccl_bench.result.report_data import ReportData

_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


def title(inspection: Inspection) -> str:
    """Return the name of a run: its model, else its directory."""
    return inspection.model or inspection.run.rstrip("/").rpartition("/")[2] or inspection.run


def identity(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """Yield the facts about a run, as (name, text); the text of an unknown one is empty."""
    traces = inspection.traces
    formats = ", ".join(dict.fromkeys(trace.format for trace in traces))
    yield "directory", inspection.run
    yield "model", inspection.model
    degrees = [f"{axis} {inspection.facts[axis].value}" for axis in _AXES if axis in inspection.facts]
    yield "parallelism", ", ".join(degrees)
    of_all = f" of {inspection.world_size}" if inspection.world_size else ""
    missing = f"; missing {ranges(inspection.missing_ranks)}" if inspection.missing_ranks else ""
    yield (
        "ranks",
        f"{len(inspection.ranks)}{of_all}: {ranges(inspection.ranks)}{missing}" if inspection.ranks else "",
    )
    yield "devices", "; ".join(devices_named(each.count, each.name) for each in inspection.devices)
    yield "libraries", ", ".join(f"{name} {' and '.join(v)}" for name, v in inspection.libraries.items())
    yield "traces", f"{counted(len(traces), f'{formats} file')}, {size(sum(t.size_bytes for t in traces))}"
    windows = sorted({trace.window for trace in traces if trace.window is not None})
    yield "windows", ranges(windows)
    numbers = sorted({step for trace in traces for step in trace.steps})
    sources = ", ".join(sorted({trace.step_source for trace in traces if trace.step_source}))
    choice = f"; chosen: {inspection.choice}" if inspection.choice else ""
    yield "steps", f"{step_numbers(numbers)}, from {sources}{choice}" if numbers else ""


SECTIONS = (
    serving,
    steps,
    time_breakdown,
    strip,
    communication,
    bandwidth,
    calls,
    waiting,
    pipeline,
    kernels,
    operators,
    products,
    memory,
    experts,
    training,
)
"""Sections of every page, in order; that on a serving sweep precedes them where there is one."""


def report_page(observed: ReportData, *, why: bool = False) -> Page:
    """Return the page of a run; the same observation gives the same page.

    With `why` it also lists the metrics for other kinds of runs, each with the reason.
    """
    context = context_of(observed, why=why)
    on_top = headline(context)
    metrics_on_top = {tile.metric for tile in on_top}
    has_results = observed.series.sweep or observed.series.why_no_sweep
    sections = [section(context) for section in (*((sweep,) if has_results else ()), *SECTIONS)]
    return Page(
        title(observed.inspection),
        tuple((name, text) for name, text in identity(observed.inspection) if text),
        on_top,
        findings(observed.inspection.issues),
        tuple(
            replace(each, numbers=tuple(tile for tile in each.numbers if tile.metric not in metrics_on_top))
            for each in sections
        ),
        definitions(observed.results, metrics.load()),
        f"ccl-bench {__version__}",
        verdict=verdict(observed.diagnosed) if observed.diagnosed is not None else None,
        quality=quality(observed.inspection),
        appendix=tuple(reference(context)),
    )
