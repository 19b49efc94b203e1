"""The page with the table of runs: filters, sorted columns, ranks among comparable runs, paging."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.render import number_cell, parallelism_text, render_page
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.columns import FILTER_LABELS, NUMBER_FILTERS, SORTED_BY, TEXT_FILTERS
from ccl_bench.leaderboard.store.query import complete_query
from ccl_bench.leaderboard.store.rows import known_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.pages.render import Cell
    from ccl_bench.leaderboard.store.query import RunQuery
    from ccl_bench.leaderboard.store.query_result import ListedRun, QueryResult

HEADINGS = (
    {"model": "Model", "submitted_at": "submitted"},
    {"hardware": "Hardware", "device_count": "devices"},
    {"framework": "Framework", "communication_library": "communication"},
)
"""Sortable columns that are not metrics."""

PHASES = {"training": "Training", "inference": "Inference", "any": "All"}


@dataclass(frozen=True, slots=True)
class Column:
    """One sortable column."""

    name: str
    title: str
    unit: str = ""
    better: str = "neither"
    sorted: str = ""
    """`ascending` or `descending`, if the table is sorted by it."""
    href: str = ""
    """The table sorted by this column, or in reverse order if it already is."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that are grouped."""

    workload: str
    label: str
    """Their workload; empty if runs are not grouped."""
    size: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    run: dict[str, Any]
    parallelism: str
    place: Cell
    """The number that gives its rank: that of the sort column, else the first ranked one."""
    cells: list[Cell]


def table_page(connection: Connection, query: RunQuery, to: Links) -> str:
    """Return the table that answers a query."""
    phases = query_result.count_phases(connection)
    asked = complete_query(query, phases)
    shown = asked.columns
    result = query_result.find_runs(connection, asked, shown)
    last = max(1, -(-result.total // asked.size))
    if asked.page > last:
        asked = asked.model_copy(update={"page": last})
        result = query_result.find_runs(connection, asked, shown)
    return render_page(
        "table.html",
        "Leaderboard",
        to,
        at="runs",
        asked=asked,
        headings=[[_column(asked, to, *each) for each in heading.items()] for heading in HEADINGS],
        columns=[
            _column(asked, to, name, name, *query_result.unit_and_direction(connection, name))
            for name in shown
        ],
        groups=list(group_rows(result, asked, shown)),
        total=result.total,
        first=(asked.page - 1) * asked.size + 1,
        last_page=last,
        pages=_pages(asked, last, to),
        phases=[(key, PHASES[key], count) for key, count in _tabs(phases)],
        labels=FILTER_LABELS,
        choices=query_result.filter_options(connection, asked),
        texts=TEXT_FILTERS,
        numbers=NUMBER_FILTERS,
        chips=list(_chips(asked, to)),
        narrowed=any(getattr(asked, name) is not None for name in NUMBER_FILTERS),
        offered=_offered(connection, shown),
        shown=shown,
        sortable=_sortable(shown),
    )


def group_rows(result: QueryResult, asked: RunQuery, shown: Sequence[str]) -> Iterator[Group]:
    """Yield the rows of a page, grouped by workload on request."""
    if asked.together == "no":
        yield Group("", "", result.total, [_row(listed, asked, shown) for listed in result.runs])
        return
    for workload, together in groupby(result.runs, key=lambda listed: listed.run["workload"]):
        listed = list(together)
        rows = [_row(each, asked, shown) for each in listed]
        yield Group(workload, listed[0].workload, listed[0].workload_size, rows)


def _row(listed: ListedRun, asked: RunQuery, shown: Sequence[str]) -> Row:
    cells = [number_cell(name, listed.numbers.get(name)) for name in shown]
    ranking = [number_cell(asked.sort, listed.numbers.get(asked.sort))]
    if asked.sort in SORTED_BY:
        ranking = [each for each in cells if each.number and each.number.place] or ranking
    return Row(listed.run, parallelism_text(listed.run), ranking[0], cells)


def _column(
    asked: RunQuery, to: Links, name: str, title: str, unit: str = "", better: str = "neither"
) -> Column:
    is_falling = _is_falling(asked.order, name, better)
    is_sorted = asked.sort == name
    # The column that the table is sorted by leads to the other order, any other to its own first one.
    turned = ("asc" if is_falling else "desc") if is_sorted else ""
    href = to.table(asked, sort=name, order=turned, page=1, together="")
    return Column(
        name, title, unit, better, ("descending" if is_falling else "ascending") if is_sorted else "", href
    )


def _is_falling(order: str, name: str, better: str) -> bool:
    if order:
        return order == "desc"
    return name == "submitted_at" if name in SORTED_BY else better != "lower"


def _sortable(shown: Sequence[str]) -> list[tuple[str, str]]:
    fields = [item for heading in HEADINGS for item in heading.items()]
    return [*((name, name) for name in shown), *((name, title.capitalize()) for name, title in fields)]


def _offered(connection: Connection, shown: Sequence[str]) -> list[tuple[str, str]]:
    """Return the possible metric columns with their summaries, displayed ones first."""
    known = known_metrics()
    measured = query_result.measured_metrics(connection)
    names = [name for name in shown if name in measured] + [name for name in measured if name not in shown]
    return [(name, known[name].summary if name in known else "") for name in names]


def _pages(asked: RunQuery, last: int, to: Links) -> dict[str, str]:
    """Return the addresses of the neighbouring pages."""
    places = {"first": 1, "previous": asked.page - 1, "next": asked.page + 1, "last": last}
    near = {
        name: place
        for name, place in places.items()
        if 1 <= place <= last and place != asked.page and last > 1
    }
    return {name: to.table(asked, page=place) for name, place in near.items()}


def _tabs(phases: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the phases that have runs, then all phases together."""
    yield from ((phase, phases[phase]) for phase in ("training", "inference") if phases.get(phase))
    yield "any", sum(phases.values())


def _chips(asked: RunQuery, to: Links) -> Iterator[tuple[str, str]]:
    """Yield each active filter, and the table without it."""
    if asked.q:
        yield f"search: {asked.q}", to.table(asked, q="", page=1)
    for name in TEXT_FILTERS:
        for value in getattr(asked, name):
            rest = [each for each in getattr(asked, name) if each != value]
            yield f"{FILTER_LABELS[name]}: {value}", to.table(asked, page=1, **{name: rest})
    for name in NUMBER_FILTERS:
        if (number := getattr(asked, name)) is not None:
            yield f"{FILTER_LABELS[name]}: {number}", to.table(asked, page=1, **{name: None})
    if asked.state:
        yield f"state: {asked.state.replace('_', ' ')}", to.table(asked, state="", page=1)
    if asked.workload:
        yield f"workload: {asked.workload[:12]}", to.table(asked, workload="", page=1)
