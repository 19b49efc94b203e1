"""The page with the table of runs: filters, sorted columns, ranks among comparable runs, paging."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, get_args

from ccl_bench.leaderboard.pages.answer import shown_answer
from ccl_bench.leaderboard.pages.render import BADGES, number_cell, parallelism_text, render_page
from ccl_bench.leaderboard.pages.titles import metric_hint, metric_title
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.columns import FILTER_LABELS, NUMBER_FILTERS, SORTED_BY, TEXT_FILTERS
from ccl_bench.leaderboard.store.query import RunQuery, complete_query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.pages.render import Cell
    from ccl_bench.leaderboard.store.query_result import ListedRun, QueryResult

HEADINGS = (
    {"model": "Model", "submitted_at": "submitted"},
    {"hardware": "Hardware", "device_count": "devices"},
    {"framework": "Framework", "communication_library": "communication"},
)
"""Sortable columns that are not metrics."""

STATES = tuple(filter(None, get_args(RunQuery.model_fields["state"].annotation)))
"""States that runs can be filtered by."""
KINDS = tuple(state for state in ("verified", "self_reported", "reported", "predicted") if state in STATES)
"""States of ranked runs, which the legend explains."""

PHASES = {"training": "Training", "inference": "Inference", "any": "All"}


@dataclass(frozen=True, slots=True)
class SortableColumn:
    """One sortable column."""

    name: str
    title: str
    hint: str = ""
    """Tooltip of the title."""
    unit: str = ""
    better: str = "neither"
    sorted: str = ""
    """`ascending` or `descending`, if the table is sorted by it."""
    href: str = ""
    """The table sorted by this column, or in reverse order if it already is."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Runs that are grouped."""

    workload: str
    label: str
    """Their workload; empty if runs are not grouped."""
    size: int
    rows: list[TableRow]


@dataclass(frozen=True, slots=True)
class TableRow:
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
    matching = query_result.count_matching(connection, full_query)
    result = query_result.find_runs(connection, full_query, columns, matching)
    last = max(1, -(-result.total // full_query.size))
    if full_query.page > last:
        full_query = full_query.model_copy(update={"page": last})
        result = query_result.find_runs(connection, full_query, columns, matching)
    measured = query_result.measured_metrics(connection)
    offered = dict.fromkeys(name for name in (*columns, *measured) if name in measured)
    fields = [(name, title.capitalize()) for heading in HEADINGS for name, title in heading.items()]
    sortable = [*((name, metric_title(name)) for name in columns), *fields]
    page = full_query.page
    neighbours = {"first": 1, "previous": page - 1, "next": page + 1, "last": last}
    return render_page(
        "table.html",
        "Leaderboard",
        to,
        at="runs",
        query=full_query,
        shown_answer=shown_answer(connection, query, to, matching) if page == 1 else None,
        headings=[[_column(full_query, to, *each) for each in heading.items()] for heading in HEADINGS],
        columns=[_metric_column(connection, full_query, to, name) for name in columns],
        groups=list(group_rows(result, full_query, columns)),
        total=result.total,
        first=(page - 1) * full_query.size + 1,
        last_page=last,
        pages={
            name: to.table(full_query, page=place)
            for name, place in neighbours.items()
            if 1 <= place <= last and place != page
        },
        phases=[
            *(
                (phase, PHASES[phase], phases[phase])
                for phase in ("training", "inference")
                if phases.get(phase)
            ),
            ("any", PHASES["any"], sum(phases.values())),
        ],
        labels=FILTER_LABELS,
        choices=matching.options,
        texts=TEXT_FILTERS,
        numbers=NUMBER_FILTERS,
        chips=list(_chips(full_query, to)),
        narrowed=any(getattr(full_query, name) is not None for name in NUMBER_FILTERS),
        offered=list(offered),
        shown=columns,
        sortable=sortable,
        sorted_by=dict(sortable).get(full_query.sort, full_query.sort),
        states=STATES,
        kinds=KINDS,
    )


def group_rows(result: QueryResult, query: RunQuery, metric_names: Sequence[str]) -> Iterator[RowGroup]:
    """Yield the rows of a page, grouped by workload on request."""
    if query.together == "no":
        yield RowGroup("", "", result.total, [_row(listed, query, metric_names) for listed in result.runs])
        return
    for workload, together in groupby(result.runs, key=lambda listed: listed.run["workload"]):
        listed = list(together)
        rows = [_row(each, query, metric_names) for each in listed]
        yield RowGroup(workload, listed[0].workload, listed[0].workload_size, rows)


def _row(listed: ListedRun, query: RunQuery, metric_names: Sequence[str]) -> TableRow:
    cells = [number_cell(name, listed.numbers.get(name)) for name in metric_names]
    ranking = [number_cell(query.sort, listed.numbers.get(query.sort))]
    if query.sort in SORTED_BY:
        ranking = [each for each in cells if each.number and each.number.place] or ranking
    return TableRow(listed.run, parallelism_text(listed.run), ranking[0], cells)


def _metric_column(connection: Connection, query: RunQuery, to: Links, name: str) -> SortableColumn:
    unit, better = query_result.unit_and_direction(connection, name)
    return _column(query, to, name, metric_title(name), metric_hint(name), unit, better)


def _column(
    query: RunQuery,
    to: Links,
    name: str,
    title: str,
    hint: str = "",
    unit: str = "",
    better: str = "neither",
) -> SortableColumn:
    if query.order:
        is_falling = query.order == "desc"
    else:
        is_falling = name == "submitted_at" if name in SORTED_BY else better != "lower"
    is_sorted = query.sort == name
    # The column that the table is sorted by leads to the other order, any other to its own first one.
    turned = ("asc" if is_falling else "desc") if is_sorted else ""
    href = to.table(query, sort=name, order=turned, page=1, together="")
    direction = ("descending" if is_falling else "ascending") if is_sorted else ""
    return SortableColumn(name, title, hint, unit, better, direction, href)


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
        yield f"state: {BADGES[query.state].word}", to.table(query, state="", page=1)
    if query.workload:
        yield f"workload: {query.workload[:12]}", to.table(query, workload="", page=1)
