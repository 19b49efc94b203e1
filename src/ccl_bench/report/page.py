"""One run as a page: the same content for HTML and Markdown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench import __version__, metrics
from ccl_bench.report.identity import identity, title
from ccl_bench.report.parts import Page
from ccl_bench.report.sections.bandwidth import bandwidth
from ccl_bench.report.sections.communication import communication
from ccl_bench.report.sections.experts import experts
from ccl_bench.report.sections.headline import findings, headline
from ccl_bench.report.sections.kernels import kernels
from ccl_bench.report.sections.memory import memory
from ccl_bench.report.sections.pipeline import pipeline
from ccl_bench.report.sections.reference import definitions, reference
from ccl_bench.report.sections.seen import seen
from ccl_bench.report.sections.serving import serving
from ccl_bench.report.sections.steps import steps
from ccl_bench.report.sections.time_parts import time_parts
from ccl_bench.report.sections.training import training
from ccl_bench.report.sections.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.report.parts import Chart, Number, Section
    from ccl_bench.result.observation import Observation

SECTIONS = (
    serving,
    steps,
    time_parts,
    communication,
    bandwidth,
    waiting,
    pipeline,
    kernels,
    memory,
    experts,
    training,
)
"""Subjects in the order in which they are read."""


def report_page(observed: Observation) -> Page:
    """Return the page of a run; the same observation gives the same page."""
    looked = seen(observed)
    on_top = headline(looked)
    return Page(
        title(observed.inspection),
        tuple((name, text) for name, text in identity(observed.inspection) if text),
        on_top,
        findings(observed.inspection.issues),
        tuple(_without(section(looked), on_top) for section in SECTIONS),
        definitions(observed.results, metrics.load()),
        f"ccl-bench {__version__}",
        tuple(reference(looked)),
    )


def _without(section: Section, told: Iterable[Number]) -> Section:
    """Return a section without the numbers that stand on top of the page already."""
    metrics_told = {number.metric for number in told}
    return replace(section, numbers=tuple(n for n in section.numbers if n.metric not in metrics_told))


def charts_of(page: Page) -> Iterator[Chart]:
    """Yield every chart of a page, in order."""
    for section in page.sections:
        yield from section.charts
