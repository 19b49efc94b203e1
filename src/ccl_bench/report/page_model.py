"""The page model, independent of its form: sections that hold numbers, charts and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLES = {
    "findings": "Data quality",
    "headline": "Headline numbers",
    "not-shown": "Nothing to show",
    "definitions": "Definitions",
}
"""Parts that every page has around its sections, by their keys."""

Spec = dict[str, Any]
"""A Vega-Lite specification with its data. Colours are CSS variables of `report.theme`."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number: its exact value and its text."""

    value: float
    text: str
    """Includes the unit, unless a column or label has it."""


@dataclass(frozen=True, slots=True)
class Term:
    """A word that is defined on the page: the name of a metric."""

    metric: str
    text: str = ""
    """What to show in place of the metric's name."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The names of several metrics."""

    metrics: tuple[str, ...]

    @property
    def text(self) -> str:
        """The names on one line."""
        return ", ".join(self.metrics)


@dataclass(frozen=True, slots=True)
class Short:
    """A short name whose full text is a tooltip."""

    text: str
    full: str


Cell = str | Quantity | Term | Terms | Short


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows of text and numbers."""

    columns: tuple[str, ...]
    """Titles, with the unit where all cells of a column share one."""
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    note: str = ""
    """What was left out, if anything."""
    numeric: frozenset[int] = frozenset()
    """Positions of the columns that align right."""
    wide: frozenset[int] = frozenset()
    """Positions of the columns whose text may be long and is wrapped."""
    first: int = 0
    """Rows that suffice in a terminal; 0 for all."""
    folded: str = ""
    """A line that a page shows in place of the table until a reader opens it; empty for a table in sight."""


@dataclass(frozen=True, slots=True)
class PageChart:
    """A drawing, its summary in words, and its data as a table."""

    key: str
    """Name of its file and of its place on the page: lower case and dashes."""
    title: str
    spec: Spec
    summary: str
    """One or two sentences for those who do not see the drawing."""
    table: PageTable
    note: str = ""
    """How the data was reduced, if it was."""
    is_wide: bool = False
    """Whether it takes the width of two charts."""


@dataclass(frozen=True, slots=True)
class PageStrip:
    """The activity of every rank in one step, as a zoomable drawing."""

    title: str
    summary: str
    """One or two sentences for those who do not see the drawing."""
    data: dict[str, Any]
    """What the page's script draws."""
    table: PageTable
    note: str = ""
    """How the data was reduced, and what the clocks are."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its label, definition and context."""

    label: str
    quantity: Quantity
    metric: str = ""
    """The metric that defines it."""
    better: str = "neither"
    """`higher`, `lower` or `neither`."""
    note: str = ""
    """Its context: the spread, or the base of a share."""
    doubts: int = 0
    """Number of warnings and errors that affect it."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """One subject of a page."""

    key: str
    title: str
    about: str = ""
    """How to read it, in a sentence or two."""
    numbers: tuple[Tile, ...] = ()
    charts: tuple[PageChart, ...] = ()
    tables: tuple[PageTable, ...] = ()
    notes: tuple[str, ...] = ()
    """Observations about the data, in sentences."""
    absent: str = ""
    """Why the section is empty; all other fields are empty then."""
    strip: PageStrip | None = None
    """Comes before the charts."""

    def drawings(self) -> tuple[PageStrip | PageChart, ...]:
        """Return the drawings, in order."""
        return (*((self.strip,) if self.strip else ()), *self.charts)


@dataclass(frozen=True, slots=True)
class PageFinding:
    """One kind of problem in the data."""

    severity: str
    """`note`, `warning` or `error`."""
    message: str
    place: str = ""
    code: str = ""
    fix: str = ""
    others: int = 0
    """Number of further findings of this kind."""


@dataclass(frozen=True, slots=True)
class ManualPage:
    """The manual page of a metric."""

    metric: str
    unit: str
    better: str
    revision: int
    manual: str


@dataclass(frozen=True, slots=True)
class PageCause:
    """A cause of lost time."""

    title: str
    gain: str
    """The gain of a change, in words."""
    remedy: str
    diagnosis: str
    """Rule that detected it."""


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """The verdict at the top of a page: where the time of a step goes, and what to change."""

    sentence: str
    """Empty if unknown; a remark states why."""
    causes: tuple[PageCause, ...] = ()
    """Most gain first."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that a report shows, in order."""

    title: str
    identity: tuple[tuple[str, str], ...]
    """Identity of the run, as (name, text)."""
    headline: tuple[Tile, ...]
    findings: tuple[PageFinding, ...]
    sections: tuple[PageSection, ...]
    definitions: tuple[ManualPage, ...] = ()
    made_by: str = ""
    verdict: PageVerdict | None = None
    quality: str = ""
    """Completeness of the data, in one line."""
    appendix: tuple[PageSection, ...] = ()
    """Reference sections."""

    @property
    def has_findings(self) -> bool:
        """Whether data was checked: a page of a search has none of its own."""
        return bool(self.quality or self.findings)

    def outline(self) -> tuple[tuple[str, str], ...]:
        """Return the key and the title of each part, in the order of every form."""
        sections = [(each.key, each.title) for each in self.sections if not each.absent]
        is_complete = len(sections) == len(self.sections)
        first = [("findings", TITLES["findings"])] if self.has_findings else []
        first.append(("headline", TITLES["headline"]))
        last = [("definitions", TITLES["definitions"])] if self.definitions else []
        absent = [] if is_complete else [("not-shown", TITLES["not-shown"])]
        appendix = [(each.key, each.title) for each in self.appendix]
        return (*first, *sections, *absent, *appendix, *last)

    def strip(self) -> PageStrip | None:
        """Return the strip of a step, of which a page has at most one."""
        return next((section.strip for section in self.sections if section.strip), None)

    def charts(self) -> Iterator[PageChart]:
        """Yield every chart, in order."""
        for section in self.sections:
            yield from section.charts
