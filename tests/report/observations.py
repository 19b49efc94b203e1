"""Observations: of real runs, and made by hand with numbers that can be followed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench.evaluate.report_data import collect_report_data
from ccl_bench.report.context import Context, context_of
from ccl_bench.result import Result
from ccl_bench.result.inspection import InspectedFact, Inspection
from ccl_bench.result.report_data import ReportData, Series
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.report.page_model import Cell, Page, PageSection, PageTable, Quantity


@cache
def observation_of(run: Path) -> ReportData:
    """Return a run, which nobody changes, observed in this process."""
    return collect_report_data(open_run(str(run)), jobs=1)


def ok(metric: str, value: float, unit: str = "s", better: str = "neither", **details: Any) -> Result:
    """Return a result that has a value."""
    return Result(metric, "ok", unit, better, value, details=details)  # type: ignore[arg-type]


def missing(metric: str, reason: str, status: str = "not_measurable") -> Result:
    """Return a result that has none."""
    return Result(metric, status, "s", "neither", reason=reason)  # type: ignore[arg-type]


def made(*results: Result, facts: dict[str, Any] | None = None, **series: Any) -> ReportData:
    """Return an observation with these results, facts of the workload card, and series."""
    known = {name: InspectedFact(value, "workload card") for name, value in (facts or {}).items()}
    return ReportData(Inspection("runs/one", 2, [0, 1], facts=known), list(results), Series(**series))


def looked(*results: Result, **more: Any) -> Context:
    """Return such an observation as sections read it."""
    return context_of(made(*results, **more))


def renamed(observed_run: ReportData, model: str) -> ReportData:
    """Return an observation whose model has another name."""
    return replace(observed_run, inspection=replace(observed_run.inspection, model=model))


def words(cell: Cell) -> str:
    """Return a cell as it is read."""
    if isinstance(cell, str):
        return cell
    return cell.text or getattr(cell, "metric", "")


def rows(table: PageTable) -> list[list[str]]:
    """Return a table as it is read."""
    return [[words(cell) for cell in row] for row in table.rows]


def tables(page: Page) -> Iterator[tuple[PageSection, PageTable]]:
    """Yield every table of a page, those of charts included."""
    for section in (*page.sections, *page.appendix):
        yield from ((section, chart.table) for chart in section.charts)
        yield from ((section, table) for table in section.tables)


def quantity(cell: Cell) -> Quantity:
    """Return a cell that holds a number."""
    assert not isinstance(cell, str)
    assert hasattr(cell, "value")
    return cell  # type: ignore[return-value]
