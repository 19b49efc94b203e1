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
    full_query = complete_query(query, phases)
    columns = full_query.columns
    result = query_result.find_runs(connection, full_query, columns)
    last = max(1, -(-result.total // full_query.size))
    if full_query.page > last:
        full_query = full_query.model_copy(update={"page": last})
        result = query_result.find_runs(connection, full_query, columns)
    return render_page(
        "table.html",
        "Leaderboard",
        to,
        at="runs",
        query=full_query,
        headings=[[_column(full_query, to, *each) for each in heading.items()] for heading in HEADINGS],
        columns=[
            _column(full_query, to, name, name, *query_result.unit_and_direction(connection, name))
            for name in columns
        ],
        groups=list(group_rows(result, full_query, columns)),
        total=result.total,
        first=(full_query.page - 1) * full_query.size + 1,
        last_page=last,
        pages=_pages(full_query, last, to),
        phases=[(key, PHASES[key], count) for key, count in _tabs(phases)],
        labels=FILTER_LABELS,
        choices=query_result.filter_options(connection, full_query),
        texts=TEXT_FILTERS,
        numbers=NUMBER_FILTERS,
        chips=list(_chips(full_query, to)),
        narrowed=any(getattr(full_query, name) is not None for name in NUMBER_FILTERS),
        offered=_offered(connection, columns),
        shown=columns,
        sortable=_sortable(columns),
    )


def group_rows(result: QueryResult, query: RunQuery, metric_names: Sequence[str]) -> Iterator[Group]:
    """Yield the rows of a page, grouped by workload on request."""
    if query.together == "no":
        yield Group("", "", result.total, [_row(listed, query, metric_names) for listed in result.runs])
        return
    for workload, together in groupby(result.runs, key=lambda listed: listed.run["workload"]):
        listed = list(together)
        rows = [_row(each, query, metric_names) for each in listed]
        yield Group(workload, listed[0].workload, listed[0].workload_size, rows)


def _row(listed: ListedRun, query: RunQuery, metric_names: Sequence[str]) -> Row:
    cells = [number_cell(name, listed.numbers.get(name)) for name in metric_names]
    ranking = [number_cell(query.sort, listed.numbers.get(query.sort))]
    if query.sort in SORTED_BY:
        ranking = [each for each in cells if each.number and each.number.place] or ranking
    return Row(listed.run, parallelism_text(listed.run), ranking[0], cells)


def _column(
    query: RunQuery, to: Links, name: str, title: str, unit: str = "", better: str = "neither"
) -> Column:
    is_falling = _is_falling(query.order, name, better)
    is_sorted = query.sort == name
    # The column that the table is sorted by leads to the other order, any other to its own first one.
    turned = ("asc" if is_falling else "desc") if is_sorted else ""
    href = to.table(query, sort=name, order=turned, page=1, together="")
    return Column(
        name, title, unit, better, ("descending" if is_falling else "ascending") if is_sorted else "", href
    )


def _is_falling(order: str, name: str, better: str) -> bool:
    if order:
        return order == "desc"
    return name == "submitted_at" if name in SORTED_BY else better != "lower"


def _sortable(metric_names: Sequence[str]) -> list[tuple[str, str]]:
    fields = [item for heading in HEADINGS for item in heading.items()]
    return [*((name, name) for name in metric_names), *((name, title.capitalize()) for name, title in fields)]


def _offered(connection: Connection, metric_names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the possible metric columns with their summaries, displayed ones first."""
    metrics = known_metrics()
    measured = query_result.measured_metrics(connection)
    names = [name for name in metric_names if name in measured] + [
        name for name in measured if name not in metric_names
    ]
    return [(name, metrics[name].summary if name in metrics else "") for name in names]


def _pages(query: RunQuery, last: int, to: Links) -> dict[str, str]:
    """Return the addresses of the neighbouring pages."""
    places = {"first": 1, "previous": query.page - 1, "next": query.page + 1, "last": last}
    near = {
        name: place
        for name, place in places.items()
        if 1 <= place <= last and place != query.page and last > 1
    }
    return {name: to.table(query, page=place) for name, place in near.items()}


def _tabs(phases: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the phases that have runs, then all phases together."""
    yield from ((phase, phases[phase]) for phase in ("training", "inference") if phases.get(phase))
    yield "any", sum(phases.values())


def _chips(query: RunQuery, to: Links) -> Iterator[tuple[str, str]]:
    """Yield each active filter, and the table without it."""
    if query.q:
        yield f"search: {query.q}", to.table(query, q="", page=1)
    for name in TEXT_FILTERS:
        for value in getattr(query, name):
            rest = [each for each in getattr(query, name) if each != value]
            yield f"{FILTER_LABELS[name]}: {value}", to.table(query, page=1, **{name: rest})
    for name in NUMBER_FILTERS:
        if (number := getattr(query, name)) is not None:
            yield f"{FILTER_LABELS[name]}: {number}", to.table(query, page=1, **{name: None})
    if query.state:
        yield f"state: {query.state.replace('_', ' ')}", to.table(query, state="", page=1)
    if query.workload:
        yield f"workload: {query.workload[:12]}", to.table(query, workload="", page=1)
