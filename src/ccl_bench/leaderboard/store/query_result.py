"""Results of queries: runs with their numbers and ranks, filter options, single runs, and exports."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import Boolean, Text, and_, case, exists, func, literal, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ccl_bench.base.text import csv_lines
from ccl_bench.leaderboard.bundle.format import LISTED, SHOWN
from ccl_bench.leaderboard.reported.observations import decode_source
from ccl_bench.leaderboard.store.columns import EXPORT_FIELDS, NUMBER_FILTERS, SORTED_BY, TEXT_FILTERS
from ccl_bench.leaderboard.store.reported_rows import STATE
from ccl_bench.leaderboard.store.rows import is_listed, known_metrics, number_rows
from ccl_bench.leaderboard.store.tables import (
    GROUPED,
    RUN_COUNTS,
    RUN_GROUPS,
    RUNS,
    SOURCES,
    VALUES,
    WORKLOADS,
)
from ccl_bench.report.formatting import exact

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Column, Connection, Engine, Select, Table
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.leaderboard.reported.observations import Source
    from ccl_bench.leaderboard.store.query import RunQuery

SHOWN_STATES = (*(state.value for state in SHOWN), STATE)
"""States of rows that have a page."""

_MAX_SEARCH_WORDS = 12
"""Each word of a search reads every run, so that a long text would keep the server busy."""


@dataclass(frozen=True, slots=True)
class RunNumber:
    """One number of one run."""

    value: float
    unit: str
    better: str
    revision: int
    measured: str
    """How it was measured, if that decides which numbers are comparable."""
    errors: int
    doubts: int
    """Number of warnings and errors that affect it."""
    low: float | None
    """Smallest of its repeats; None if there is none."""
    high: float | None
    repeats: int | None
    place: int | None
    """Rank among comparable runs; None if not ranked."""
    ranked: int | None
    """Number of runs that it is ranked among."""

    @property
    def is_best(self) -> bool:
        """Whether it is the best of several."""
        return self.place == 1 and (self.ranked or 0) > 1


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run with the requested numbers."""

    run: dict[str, Any]
    """Its row in the index."""
    workload: str
    """Its workload, in words."""
    workload_size: int
    """Listed runs of that workload."""
    numbers: dict[str, RunNumber] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One page of runs."""

    runs: list[ListedRun]
    total: int
    """Runs on all pages."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The number of runs that match a query, by what they have in common."""

    total: int
    options: dict[str, list[tuple[str, int]]]
    """Options of each filter; each with its number of runs."""
    by_workload: dict[str, int]
    phase: str
    """Phase of the query."""


def count_matching(connection: Connection, query: RunQuery) -> Matching:
    """Return the numbers of runs that match a query.

    A filter does not narrow its own options: another value of it may be chosen.
    """
    names = (*TEXT_FILTERS, *NUMBER_FILTERS)
    if not is_narrowed(query):
        counts = _counts(connection, query, "", *names, "workload")
        by_workload = dict(counts.pop("workload"))
        return Matching(
            sum(count for _, count in counts.pop("")), _sorted_options(counts), by_workload, query.phase
        )
    groups = connection.execute(counted_by(query, *GROUPED)).all()
    sizes = [group[-1] for group in groups]
    totals: dict[str, Counter[Any]] = {}
    for name, values in zip(GROUPED, list(zip(*groups, strict=True)) or [()] * len(GROUPED), strict=False):
        totals[name] = Counter()
        for value, count in zip(values, sizes, strict=True):
            totals[name][value] += count
    options = {
        name: [(str(value), n) for value, n in totals[name].items() if value is not None] for name in names
    }
    for name in filter(partial(_narrows, query), names):
        options[name] = _options_without(connection, query, name)
    return Matching(sum(sizes), _sorted_options(options), dict(totals["workload"]), query.phase)


def _options_without(connection: Connection, query: RunQuery, name: str) -> list[tuple[str, int]]:
    """Return the options of a filter without its own effect."""
    rest = query.model_copy(update={name: [] if name in TEXT_FILTERS else None})
    if not is_narrowed(rest):
        return _counts(connection, rest, name)[name]
    rows = connection.execute(counted_by(rest, name))
    return [(str(value), count) for value, count in rows if value is not None]


def counted_by(query: RunQuery, *names: str) -> Select[Any]:
    """Return the query to the database for the values of some columns and the number of runs that share them.

    A search reads the runs, everything else their groups.
    """
    if query.q.split():
        columns = [RUNS.c[name] for name in names]
        statement = select(*columns, func.count().label("count")).where(*where_clauses(query, is_scan=True))
        return statement.group_by(*columns)
    columns = [RUN_GROUPS.c[name] for name in names]
    count = func.sum(RUN_GROUPS.c["count"]).label("count")
    return select(*columns, count).where(*where_clauses(query, table=RUN_GROUPS)).group_by(*columns)


def _sorted_options(options: dict[str, list[tuple[str, int]]]) -> dict[str, list[tuple[str, int]]]:
    return {
        name: sorted(
            values, key=lambda each: (int(each[0]) if name in NUMBER_FILTERS else 0, each[0].lower(), each[0])
        )
        for name, values in options.items()
    }


_SORTED_AT_ONCE = 5000
"""Runs up to which all are sorted; of more, a page is read along an index, which finds its runs early."""


def find_runs(
    connection: Connection,
    query: RunQuery,
    columns: Sequence[str] | None = None,
    matching: Matching | None = None,
) -> QueryResult:
    """Return the page of runs that a query asks for, with the numbers of some metrics, or of all.

    `matching` are the counts of the query, if the caller has them.
    """
    # Runs are sorted with the columns of the order alone; their other columns are read for one page.
    skipped = (query.page - 1) * query.size
    if matching is None:
        matching = count_matching(connection, query)
    total = matching.total
    if skipped >= total:
        ids = []
    elif is_narrowed(query) and total <= _SORTED_AT_ONCE:
        statement = _order(select(RUNS.c.id).where(*where_clauses(query, is_scan=True)), query)
        ids = list(connection.execute(statement.limit(query.size).offset(skipped)).scalars())
    else:
        ids = _page_of_all(connection, query, skipped, matching.by_workload)
    metric_names = None if columns is None else {*columns, query.sort}
    listed = _listed_runs(connection, _RUNS_WITH_WORKLOADS.where(RUNS.c.id.in_(ids)), metric_names)
    by_id = {each.run["id"]: each for each in listed}
    return QueryResult([by_id[run] for run in ids if run in by_id], total)


_RUNS_WITH_WORKLOADS = select(RUNS, WORKLOADS.c.label, WORKLOADS.c.size).join(
    WORKLOADS, WORKLOADS.c.key == RUNS.c.workload
)


def _listed_runs(
    connection: Connection, statement: Select[Any], names: Collection[str] | None = None
) -> list[ListedRun]:
    """Return the runs that a query selects, with all their numbers, or those of some metrics."""
    rows = [dict(row) for row in connection.execute(statement).mappings()]
    numbers: dict[str, dict[str, RunNumber]] = {row["id"]: {} for row in rows}
    of_runs = number_rows().where(VALUES.c.run.in_(numbers))
    if names is not None:
        of_runs = of_runs.where(VALUES.c.metric.in_(sorted(names)))
    for number in map(dict, connection.execute(of_runs).mappings()):
        run, metric = number.pop("run"), number.pop("metric")
        numbers[run][metric] = RunNumber(**number)
    return [ListedRun(row, row.pop("label"), row.pop("size"), numbers[row["id"]]) for row in rows]


def where_clauses(
    query: RunQuery, *, is_scan: bool = False, table: Table = RUNS
) -> list[ColumnElement[bool]]:
    """Return the conditions on runs, or on their groups, which have no words to search.

    `is_scan` is for statements that read `ix_runs_groups` in its order: a condition on a plain column would
    have SQLite take another index, or sort what is in order already.
    """

    of = _scanned if is_scan else table.c.__getitem__
    # A search without filters reads every run: one after the other, not each through an index.
    is_of_all = is_scan and query.q.split() and not _has_filters(query)
    first_of = _scanned if is_of_all else table.c.__getitem__
    clauses = [first_of("is_listed") == int(_is_of_tables(query))]
    if query.state:
        clauses.append(of("state") == query.state)
    if query.phase not in {"", "any"}:
        clauses.append(first_of("phase") == query.phase)
    if query.origin:
        source = _scanned("source") if table is RUNS else table.c.source
        clauses.append(source.is_(None) if query.origin == "published" else source.is_not(None))
    for name in TEXT_FILTERS:
        if values := getattr(query, name):
            clauses.append((table.c[name] if name == "model" else of(name)).in_(values))
    for name in NUMBER_FILTERS:
        if (number := getattr(query, name)) is not None:
            clauses.append(of(name) == number)
    if query.workload:
        clauses.append(table.c.workload.startswith(query.workload, autoescape=True))
    words = query.q.lower().split()[:_MAX_SEARCH_WORDS]
    return clauses + [_contains(word) for word in words]


class _contains(FunctionElement[bool]):  # noqa: N801  as other functions of SQL
    """Whether the words of a run contain one.

    PostgreSQL finds its place in 0.7 of the time of LIKE; SQLite needs twice as long for the place.
    """

    inherit_cache = True
    type = Boolean()

    def __init__(self, word: str) -> None:
        pattern = word.replace("/", "//").replace("%", "/%").replace("_", "/_")
        super().__init__(RUNS.c.searched, literal(word, Text), literal(f"%{pattern}%", Text))


@compiles(_contains)
def _by_place(element: _contains, compiler: SQLCompiler, **options: Any) -> str:
    searched, word, _ = element.clauses
    return f"(strpos({compiler.process(searched, **options)}, {compiler.process(word, **options)}) > 0)"


@compiles(_contains, "sqlite")
def _by_pattern(element: _contains, compiler: SQLCompiler, **options: Any) -> str:
    searched, _, pattern = element.clauses
    return f"({compiler.process(searched, **options)} LIKE {compiler.process(pattern, **options)} ESCAPE '/')"


class _scanned(FunctionElement[Any]):  # noqa: N801  as other functions of SQL
    """A column that SQLite reads in `ix_runs_groups`, and looks up in no other index."""

    inherit_cache = True

    def __init__(self, name: str) -> None:
        super().__init__(RUNS.c[name])
        self.type = RUNS.c[name].type


@compiles(_scanned)
def _plain(element: _scanned, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(_scanned, "sqlite")
def _without_index(element: _scanned, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{compiler.process(element.clauses, **options)}"


def _is_of_tables(query: RunQuery) -> bool:
    """Whether the runs of a query are listed."""
    return query.state in {"", STATE, *(state.value for state in LISTED)}


def _order(statement: Select[Any], query: RunQuery) -> Select[Any]:
    """Return the query to the database with the order of its answer."""
    statement = statement.join(WORKLOADS, WORKLOADS.c.key == RUNS.c.workload)
    groups = [WORKLOADS.c.size.desc(), WORKLOADS.c.label, WORKLOADS.c.key] if query.together == "yes" else []
    column: ColumnElement[Any]
    if query.sort in SORTED_BY or not query.sort:
        column = RUNS.c[query.sort or "submitted_at"]
        is_falling = query.order == "desc" or (not query.order and column is RUNS.c.submitted_at)
    else:
        statement = statement.outerjoin(
            VALUES, and_(VALUES.c.run == RUNS.c.id, VALUES.c.metric == query.sort)
        )
        column = VALUES.c.value
        is_falling = query.order == "desc"
        if not query.order:
            column, is_falling = (
                case((VALUES.c.better == "lower", -VALUES.c.value), else_=VALUES.c.value),
                True,
            )
    missing_last = case((column.is_(None), 1), else_=0)
    return statement.order_by(*groups, missing_last, column.desc() if is_falling else column.asc(), RUNS.c.id)


def is_narrowed(query: RunQuery) -> bool:
    """Whether a query has filters other than the phase."""
    return bool(_has_filters(query) or query.state or query.origin or query.workload or query.q.split())


def _page_of_all(
    connection: Connection, query: RunQuery, skipped: int, counts: Mapping[str, int]
) -> list[str]:
    """Return a page read through an index; `counts` are the runs of each workload."""
    if query.together != "yes":
        return _read_in_order(connection, query, "", skipped, query.size)
    size = WORKLOADS.c.size.desc()
    statement = select(WORKLOADS.c.key).order_by(size, WORKLOADS.c.label, WORKLOADS.c.key)
    shown: list[tuple[str, int, int]] = []
    """Workloads that the page shows, with the number of their runs before it and on it."""
    left = query.size
    for key in connection.execute(statement).scalars():
        before, skipped = min(skipped, counts.get(key, 0)), max(0, skipped - counts.get(key, 0))
        if count := min(counts.get(key, 0) - before, left):
            shown.append((key, before, count))
            left -= count
        if not left:
            break
    runs: list[str] = []
    # Workloads that the page shows in full are read together: there may be many.
    for is_whole, groups in groupby(shown, key=lambda group: group[2] == counts[group[0]]):
        if is_whole:
            keys = [key for key, _, _ in groups]
            whole = select(RUNS.c.id).where(*where_clauses(query), RUNS.c.workload.in_(keys))
            runs += connection.execute(_order(whole, query)).scalars()
        else:
            for key, before, count in groups:
                runs += _read_in_order(connection, query, key, before, count)
    return runs


def _read_in_order(
    connection: Connection, query: RunQuery, workload: str, skipped: int, most: int
) -> list[str]:
    """Return runs of a workload, or all, in the order of a query; the sort column may be missing."""
    runs: list[str] = []
    for part in _parts(connection, query, workload):
        statement = part.limit(most - len(runs)).offset(skipped)
        runs += connection.execute(statement).scalars()
        if len(runs) == most:
            break
        if skipped and not runs:
            count = select(func.count()).select_from(part.order_by(None).subquery())
            skipped -= connection.execute(count).scalar_one()
        else:
            skipped = 0
    return runs


def _parts(connection: Connection, query: RunQuery, workload: str) -> Iterator[Select[Any]]:
    """Yield the runs with a value in the sort column, sorted, then the others."""
    where = where_clauses(query) + ([RUNS.c.workload == workload] if workload else [])
    without = select(RUNS.c.id).where(*where).order_by(RUNS.c.id)
    if query.sort in SORTED_BY or not query.sort:
        column = RUNS.c[query.sort or "submitted_at"]
        is_falling = query.order == "desc" or (not query.order and column is RUNS.c.submitted_at)
        with_value = select(RUNS.c.id).where(*where, column.is_not(None))
        yield with_value.order_by(column.desc() if is_falling else column.asc(), RUNS.c.id)
        if column.nullable:
            yield without.where(column.is_(None))
        return
    of_metric = VALUES.c.metric == query.sort
    # Each is the end of an index; both in one query would read all of it.
    ends = (select(end(VALUES.c.better)).where(of_metric).scalar_subquery() for end in (func.min, func.max))
    first, last = connection.execute(select(*ends)).one()
    if first != last:  # runs disagree on the direction of this metric
        yield _order(select(RUNS.c.id).where(*where), query)
        return
    if first is not None:
        is_falling = query.order == "desc" or (not query.order and first != "lower")
        is_of_tables = VALUES.c.is_listed == int(_is_of_tables(query))
        numbers = select(VALUES.c.run).where(of_metric, VALUES.c.better == first, is_of_tables)
        if workload:
            numbers = numbers.where(VALUES.c.workload == workload)
        if is_narrowed(query) or query.phase not in {"", "any"}:
            numbers = numbers.where(
                exists().where(RUNS.c.id == VALUES.c.run, *where_clauses(query, is_scan=True))
            )
        yield numbers.order_by(VALUES.c.value.desc() if is_falling else VALUES.c.value, VALUES.c.run)
    yield without.where(~exists().where(VALUES.c.run == RUNS.c.id, of_metric))


def filter_options(connection: Connection, query: RunQuery) -> dict[str, list[tuple[str, int]]]:
    """Return the filter options of each column, each with its number of runs."""
    return count_matching(connection, query).options


def _counts(connection: Connection, query: RunQuery, *names: str) -> dict[str, list[tuple[str, int]]]:
    """Return the stored counts of listed runs by value of some fields, for a phase or all."""
    counts = RUN_COUNTS.c
    statement = select(counts.field, counts.value, func.sum(counts["count"])).where(counts.field.in_(names))
    if query.phase not in {"", "any"}:
        statement = statement.where(counts.phase == query.phase)
    totals: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
    grouped = statement.group_by(counts.field, counts.value).order_by(counts.field, counts.value)
    for name, value, runs in connection.execute(grouped):
        totals[name].append((value, runs))
    return totals


def _has_filters(query: RunQuery) -> bool:
    return any(_narrows(query, name) for name in (*TEXT_FILTERS, *NUMBER_FILTERS))


def _narrows(query: RunQuery, name: str) -> bool:
    return getattr(query, name) not in (None, [])


def count_phases(connection: Connection) -> dict[str, int]:
    """Return the listed runs of each phase."""
    statement = select(RUN_COUNTS.c.phase, RUN_COUNTS.c["count"]).where(RUN_COUNTS.c.field == "")
    ordered = statement.order_by(RUN_COUNTS.c.phase)
    return {phase or "unknown": runs for phase, runs in connection.execute(ordered)}


def measured_metrics(connection: Connection) -> list[str]:
    """Return the metrics that some run has a value for, sorted.

    The index of the table is read from one name to the next, so that the time does not grow with the number
    of values.
    """
    first = select(func.min(VALUES.c.metric).label("metric")).cte("names", recursive=True)
    following = select(func.min(VALUES.c.metric)).where(VALUES.c.metric > first.c.metric).scalar_subquery()
    names = first.union_all(select(following).where(first.c.metric.is_not(None)))
    statement = select(names.c.metric).where(names.c.metric.is_not(None))
    return sorted(connection.execute(statement).scalars())


def unit_and_direction(connection: Connection, metric: str) -> tuple[str, str]:
    """Return unit and better direction of a metric, also of one that this installation lacks."""
    if definition := known_metrics().get(metric):
        return definition.unit, definition.better
    statement = select(VALUES.c.unit, VALUES.c.better).where(VALUES.c.metric == metric).limit(1)
    row = connection.execute(statement).first()
    return (row[0], row[1]) if row else ("", "neither")


_BEGINNING = re.compile(r"[0-9a-f]{8,64}")


def find_run(
    connection: Connection, beginning: str, metrics: Collection[str] | None = None
) -> ListedRun | None:
    """Return the run with this prefix of its identifier, with all its numbers, or those of some metrics.

    None unless exactly one run has it.
    """
    if not _is_hash(beginning):
        return None
    runs = _select_runs(connection, _starts_with(RUNS.c.id, beginning), limit=2, metrics=metrics)
    return runs[0] if len(runs) == 1 else None


def find_workload(connection: Connection, beginning: str) -> dict[str, Any] | None:
    """Return the row of the workload with this prefix of its key; None unless exactly one."""
    if not _is_hash(beginning):
        return None
    statement = select(WORKLOADS).where(_starts_with(WORKLOADS.c.key, beginning)).limit(2)
    workloads = connection.execute(statement).mappings().all()
    return dict(workloads[0]) if len(workloads) == 1 else None


def find_source(connection: Connection, name: str) -> tuple[Source, int] | None:
    """Return a source of rows reported elsewhere and its number of rows; None if the board has none of it."""
    row = connection.execute(select(SOURCES).where(SOURCES.c.name == name)).first()
    return (decode_source(row.description), row.rows) if row and row.description else None


def list_sources(connection: Connection) -> list[tuple[Source, int]]:
    """Return the sources of rows reported elsewhere, with their numbers of rows."""
    names = connection.execute(select(SOURCES.c.name).order_by(SOURCES.c.name)).scalars().all()
    return [source for name in names if (source := find_source(connection, name))]


def list_workloads(connection: Connection) -> list[dict[str, Any]]:
    """Return the workloads that have listed runs, those with most runs first."""
    statement = select(WORKLOADS).where(WORKLOADS.c.size > 0)
    ordered = statement.order_by(WORKLOADS.c.size.desc(), WORKLOADS.c.label, WORKLOADS.c.key)
    return [dict(row) for row in connection.execute(ordered).mappings()]


def public_run_ids(connection: Connection) -> list[str]:
    """Return the identifiers of all runs that have a page."""
    statement = (
        select(RUNS.c.id).where(RUNS.c.state.in_([state.value for state in SHOWN])).order_by(RUNS.c.id)
    )
    return list(connection.execute(statement).scalars())


def runs_of_workload(connection: Connection, workload: str, limit: int = 1000) -> list[ListedRun]:
    """Return the listed runs of a workload, the newest first, with all their numbers."""
    return _select_runs(connection, (RUNS.c.workload == workload) & is_listed(), limit=limit)


def _select_runs(
    connection: Connection, condition: Any, *, limit: int, metrics: Collection[str] | None = None
) -> list[ListedRun]:
    shown = _RUNS_WITH_WORKLOADS.where(condition, RUNS.c.state.in_(SHOWN_STATES))
    newest = shown.order_by(RUNS.c.submitted_at.desc(), RUNS.c.id).limit(limit)
    return _listed_runs(connection, newest, metrics)


def _is_hash(beginning: str) -> bool:
    return bool(_BEGINNING.fullmatch(beginning))


def _starts_with(column: Column[str], beginning: str) -> Any:
    """Return the condition that a hash has this prefix, as a range that uses the index."""
    return column.between(beginning.ljust(64, "0"), beginning.ljust(64, "f"))


_EXPORT_PAGE = 500
_HIDDEN = {"searched", "history_stamp", "is_rankable", "is_listed", "interactivity"}
"""Internal columns of the index."""


def run_as_dict(listed: ListedRun) -> dict[str, Any]:
    """Return a run as plain data."""
    row = {name: value for name, value in listed.run.items() if name not in _HIDDEN}
    row["has_report"] = bool(row["has_report"])
    row["workload_label"] = listed.workload
    return row | {"numbers": {name: asdict(number) for name, number in sorted(listed.numbers.items())}}


def iterate_runs(engine: Engine, query: RunQuery) -> Iterator[ListedRun]:
    """Yield every run that matches a query, of all pages."""
    page, seen, total = 1, 0, 1
    while seen < total:
        page_query = query.model_copy(update={"page": page, "size": _EXPORT_PAGE})
        with engine.connect() as connection:
            result = find_runs(connection, page_query, query.columns or None)
        if not result.runs:
            return
        yield from result.runs
        page, seen, total = page + 1, seen + len(result.runs), result.total


def export_csv(engine: Engine, query: RunQuery, metrics: list[str]) -> Iterator[str]:
    """Yield the answer as CSV: a row for each run, a column for each metric, and one for each rank."""
    head = [name for metric in metrics for name in (metric, f"{metric} rank", f"{metric} ranked")]
    yield from csv_lines([[*EXPORT_FIELDS, *head]])
    for listed in iterate_runs(engine, query):
        cells: list[Any] = [listed.run[name] for name in EXPORT_FIELDS]
        for metric in metrics:
            number = listed.numbers.get(metric)
            cells += [exact(number.value), number.place, number.ranked] if number else ["", "", ""]
        yield from csv_lines([cells])


def export_json(engine: Engine, query: RunQuery) -> Iterator[str]:
    """Yield the answer as a JSON list."""
    before = "["
    for listed in iterate_runs(engine, query):
        yield f"{before}\n{json.dumps(run_as_dict(listed), allow_nan=False)}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"
