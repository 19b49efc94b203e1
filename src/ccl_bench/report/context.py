"""The data of a run that sections read, and the numbers, tables and reasons that they take from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.report.formatting import with_unit
from ccl_bench.report.page_model import PageSection, PageTable, Quantity, Tile
from ccl_bench.report.results import STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccl_bench.report.page_model import Cell
    from ccl_bench.result import Result
    from ccl_bench.result.diagnosis import Diagnosed
    from ccl_bench.result.inspection import Inspection
    from ccl_bench.result.report_data import ReportData, Series

OF_STEP = "of the traced step"
"""The base of shares of a step, even if step times come from a file written without tracing."""


@dataclass(frozen=True, slots=True)
class Context:
    """The data that sections draw from."""

    inspection: Inspection
    results: dict[str, Result]
    series: Series
    why_all: bool = False
    """Whether to also list the metrics for other kinds of runs."""
    diagnosed: Diagnosed | None = None
    """The verdict and the opportunities."""

    def valued(self, metric: str) -> Result | None:
        """Return a metric's result if it has a value."""
        result = self.results.get(metric)
        return result if result is not None and result.value is not None else None

    def why(self, *metrics: str) -> str:
        """Return in one sentence why the first computed one of some metrics has no value."""
        for metric in metrics:
            result = self.results.get(metric)
            if result is not None and result.value is None:
                return f"{STATUS_WORDS[result.status].capitalize()}: {result.reason}."
        return "No such data was recorded."


def context_of(observed: ReportData, *, why: bool = False) -> Context:
    """Return an observation with its results by name."""
    results = {result.metric: result for result in observed.results}
    return Context(observed.inspection, results, observed.series, why, observed.diagnosed)


def absent(key: str, title: str, why: str) -> PageSection:
    """Return an empty section with its reason."""
    return PageSection(key, title, absent=why)


def tile(
    context: Context,
    metric: str,
    label: str,
    *,
    note: str = "",
    formatter: Callable[[float], str] | None = None,
) -> list[Tile]:
    """Return a metric's value as a number, or nothing where it has none."""
    result = context.valued(metric)
    if result is None or result.value is None:
        return []
    text = formatter(result.value) if formatter else with_unit(result.value, result.unit)
    doubts = sum(finding.severity != "note" for finding in result.findings)
    return [Tile(label, Quantity(result.value, text), metric, result.better, note, doubts)]


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str = "",
    note: str = "",
    left: Iterable[int] = (0,),
    wide: Iterable[int] = (),
    first: int = 0,
) -> PageTable:
    """Return a table of numbers; columns in `left` hold text, `first` rows suffice in a terminal."""
    text = set(left)
    numeric = frozenset(place for place in range(len(columns)) if place not in text)
    every = tuple(tuple(row) for row in rows)
    return PageTable(tuple(columns), every, caption, note, numeric, frozenset(wide), first)


def cell(value: float | None, read: Callable[[float], str], unknown: str = "-") -> Cell:
    """Return a number as `read` writes it, or a text where it is unknown."""
    return unknown if value is None else Quantity(value, read(value))


def merged_note(count: int, one: str, many: str, stands_for: str = "the mean of") -> str:
    """Return a note about entries of a chart that stand for several, or empty text."""
    return f"Each {one} is {stands_for} up to {count:,} {many}." if count > 1 else ""
